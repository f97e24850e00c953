/* Opens the first device, and says what errno is if it cannot. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context;

    if (!list) {
        printf("list: %s\n", strerrorname_np(errno));
        return 1;
    }
    context = list[0] ? ibv_open_device(list[0]) : NULL;
    if (!context) {
        printf("open: %s\n", strerrorname_np(errno));
        /* Programs try again. */
        ibv_open_device(list[0]);
        return 1;
    }
    ibv_close_device(context);
    ibv_free_device_list(list);
    return 0;
}
