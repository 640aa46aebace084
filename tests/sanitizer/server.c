// What a server needs to load a module that was built with AddressSanitizer. `make asan` preloads it, and the sanitizer's runtime after it.
#define _GNU_SOURCE
#include <dlfcn.h>

// Servers load modules with RTLD_DEEPBIND, which the runtime refuses.
void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}

// The runtime asks for this. It does not come first, and what servers leave at their end is no leak.
const char *__asan_default_options(void) {
    return "verify_asan_link_order=0:detect_leaks=0";
}
