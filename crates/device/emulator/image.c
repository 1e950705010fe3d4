// SPDX-License-Identifier: Apache-2.0
// Compiles images with the host's compiler, once for all processes.
//
// `config.h` of the build has EMULATOR_FOLDER, where the emulator and its compiled kernels are, and
// EMULATOR_COMPILER. EMULATOR_FLAGS adds flags.
#define _GNU_SOURCE
#include "config.h"
#include "count.h"
#include "image.h"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct { char text[2048]; } Flags;

// A GPU refuses misaligned accesses: so do they here, by an illegal instruction. Counting needs
// clang.
static Flags flags(void) {
    Flags all;
    const char *text = getenv("EMULATOR_FLAGS");
    const char *counting = is_counting() ? "-DEMULATED_COUNT -fsanitize-coverage=func,trace-loads,trace-stores" : "";
    snprintf(all.text, sizeof all.text, "-fsanitize=alignment -fsanitize-undefined-trap-on-error %s %s", counting, text ? text : "");
    return all;
}

// FNV-1a, over the text, the flags and the build of the emulator.
static uint64_t hash(uint64_t state, const char *text) {
    for (; *text; ++text) state = (state ^ (unsigned char)*text) * 0x100000001b3;
    return state;
}

void cached_path(char *path, size_t bytes, const char *text, const char *suffix) {
    uint64_t first = hash(hash(hash(0xcbf29ce484222325, text), flags().text), EMULATOR_BUILD);
    uint64_t second = hash(first * 0x9e3779b97f4a7c15, text);
    snprintf(path, bytes, "%s/kernels/%016llx%016llx%s", EMULATOR_FOLDER, (unsigned long long)first, (unsigned long long)second, suffix);
}

int file_exists(const char *path) { return access(path, F_OK) == 0; }

char *make_image(const char *text, const char *names) {
    char *image = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&image, &bytes);
    fputs("/* .version of the emulator\n", out);
    char *list = strdup(names), *rest = list;
    for (char *name; (name = strsep(&rest, " "));)
        if (*name) fprintf(out, ".entry %.*s(\n", (int)strcspn(name, ":"), name);
    fprintf(out, "*/\n%s\n", text);
    memcpy(list, names, strlen(names) + 1);
    rest = list;
    for (char *name; (name = strsep(&rest, " "));) {
        char *bound = strchr(name, ':');
        if (bound) *bound++ = 0;
        if (*name) fprintf(out, "EMULATED_KERNEL(%s, %s)\n", name, bound ? bound : "1024");
    }
    free(list);
    fclose(out);
    return image;
}

// Runs the compiler through the shell; its messages go to a file.
static int compile(const char *source, const char *library, const char *messages) {
    char command[20480];
    snprintf(command, sizeof command,
             "exec %s -x c++ -std=c++17 -O1 -fPIC -shared -w -ffp-contract=off -fno-strict-aliasing -fwrapv -fno-exceptions -fno-rtti "
             "-fvisibility=hidden -include '%s/kernel.h' %s -o '%s' '%s' -lm >'%s' 2>&1",
             EMULATOR_COMPILER, EMULATOR_SOURCES, flags().text, library, source, messages);
    char *const arguments[] = {"sh", "-c", command, NULL};
    pid_t child;
    int status = 0;
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ)) return 0;
    int waited;
    while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR) {}
    // A process that ignores its children gets no status.
    return waited < 0 ? file_exists(library) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void read_messages(const char *path, char *log, size_t bytes) {
    FILE *file = bytes ? fopen(path, "r") : NULL;
    if (!file) return;
    log[fread(log, 1, bytes - 1, file)] = 0;
    fclose(file);
}

void *load_image(const char *image, char *log, size_t log_bytes) {
    char library[4096], source[4200], built[4200], messages[4200];
    if (log_bytes) *log = 0;
    if (strncmp(image, "/* .version of the emulator", 27)) {
        if (log_bytes) snprintf(log, log_bytes, "ptxas fatal: not an image of the emulator\n");
        return NULL;
    }
    cached_path(library, sizeof library, image, ".so");
    if (!file_exists(library)) {
        static int number;
        int own = __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED);
        snprintf(source, sizeof source, "%s.%d.%d.cpp", library, getpid(), own);
        snprintf(built, sizeof built, "%s.%d.%d", library, getpid(), own);
        snprintf(messages, sizeof messages, "%s.%d.%d.log", library, getpid(), own);
        FILE *file = fopen(source, "w");
        if (!file || fputs(image, file) < 0 || fclose(file)) {
            if (log_bytes) snprintf(log, log_bytes, "%s cannot be written\n", source);
            return NULL;
        }
        int compiled = compile(source, built, messages);
        if (!compiled) read_messages(messages, log, log_bytes);
        remove(messages);
        if (compiled) remove(source);
        if (!compiled || rename(built, library)) return NULL;
    }
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!loaded && log_bytes) snprintf(log, log_bytes, "%s\n", dlerror());
    return loaded;
}
