/* Prints the name of every number. */
#include <stdio.h>
#include <infiniband/umad.h>
#include <infiniband/umad_str.h>

int main(void)
{
    static const int classes[] = { 1, 3, 4, 6, 7, 0x81 };

    for (int class = 0; class < 256; class++)
        printf("class %d %s\n", class, umad_class_str(class));
    for (int i = 0; i < 6; i++) {
        for (int method = 0; method < 256; method++)
            printf("method %d %d %s\n", classes[i], method,
                   umad_method_str(classes[i], method));
        for (int attribute = 0; attribute < 512; attribute++)
            printf("attribute %d %d %s\n", classes[i], attribute,
                   umad_attribute_str(classes[i], htons(attribute)));
    }
    for (int status = 0; status < 0x10000; status += 1 + (status > 64) * 63)
        printf("status %d %s, %s\n", status, umad_common_mad_status_str(htons(status)),
               umad_sa_mad_status_str(htons(status)));
    return 0;
}
