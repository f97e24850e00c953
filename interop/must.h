/* What has to succeed, and how an end says that it did not. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    exit(1);
}

static void must(int is_true, const char *what)
{
    if (!is_true)
        fail("%s failed", what);
}
