// SPDX-License-Identifier: Apache-2.0
// NVRTC for the emulator: NVIDIA's own compiles each text, and the text itself is the image.
//
// A text that NVRTC refuses fails as on a GPU. The PTX is dropped: `libcuda.c` compiles the
// text for the host. `config.h` of the build has EMULATOR_NVRTC, the file of NVIDIA's library.
#define _GNU_SOURCE
#include "config.h"
#include "image.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Status;
typedef struct { void *real; char *text, *image; } *Program;

// Aborts without the library: the build has found it.
static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen(EMULATOR_NVRTC, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol) {
        fprintf(stderr, "cuda emulator: %s\n", dlerror());
        abort();
    }
    return symbol;
}
#define REAL(name, ...) ((Status(*)(__VA_ARGS__))real(#name))

Status nvrtcVersion(int *major, int *minor) { return REAL(nvrtcVersion, int *, int *)(major, minor); }
Status nvrtcGetNumSupportedArchs(int *count) { return REAL(nvrtcGetNumSupportedArchs, int *)(count); }
Status nvrtcGetSupportedArchs(int *archs) { return REAL(nvrtcGetSupportedArchs, int *)(archs); }

Status nvrtcCreateProgram(Program *out, const char *text, const char *name, int headers, const char *const *sources, const char *const *names) {
    void *made;
    Status status = REAL(nvrtcCreateProgram, void **, const char *, const char *, int, const char *const *, const char *const *)(&made, text, name, headers, sources, names);
    if (status) return status;
    *out = calloc(1, sizeof **out);
    (*out)->real = made;
    (*out)->text = strdup(text);
    return 0;
}
Status nvrtcDestroyProgram(Program *program) {
    Status status = REAL(nvrtcDestroyProgram, void **)(&(*program)->real);
    free((*program)->text);
    free((*program)->image);
    free(*program);
    *program = NULL;
    return status;
}

// The names after `.entry` in the PTX that NVRTC made, with their launch bounds (`.maxntid`).
static char *entry_names(void *program) {
    size_t bytes = 0, length = 0;
    if (REAL(nvrtcGetPTXSize, void *, size_t *)(program, &bytes) || !bytes) return NULL;
    char *ptx = malloc(bytes), *names = NULL;
    REAL(nvrtcGetPTX, void *, char *)(program, ptx);
    FILE *out = open_memstream(&names, &length);
    for (char *at = ptx; (at = strstr(at, ".entry "));) {
        at += 7;
        fprintf(out, "%.*s", (int)strcspn(at, "( \n"), at);
        char *body = strchr(at, '{'), *bound = strstr(at, ".maxntid ");
        if (bound && bound < body) fprintf(out, ":%d", atoi(bound + 9));
        fputc(' ', out);
    }
    fclose(out);
    free(ptx);
    return names;
}
static char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    char *text = NULL;
    size_t bytes = 0;
    ssize_t length = getdelim(&text, &bytes, 0, file);
    fclose(file);
    if (length >= 0) return text;
    free(text);
    return NULL;
}

// Takes the names of a text that NVRTC has compiled before.
Status nvrtcCompileProgram(Program program, int count, const char *const *options) {
    char path[4096], built[4200];
    char *key = NULL, *names;
    size_t bytes = 0;
    FILE *out = open_memstream(&key, &bytes);
    for (int i = 0; i < count; ++i) fprintf(out, "%s\n", options[i]);
    fputs(program->text, out);
    fclose(out);
    cached_path(path, sizeof path, key, ".names");
    free(key);
    names = read_file(path);
    if (!names) {
        Status status = REAL(nvrtcCompileProgram, void *, int, const char *const *)(program->real, count, options);
        if (status) return status;
        names = entry_names(program->real);
        if (!names) return 7;
        static int number;
        snprintf(built, sizeof built, "%s.%d.%d", path, getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
        FILE *file = fopen(built, "w");
        if (file) {
            int written = fputs(names, file) >= 0;
            if (fclose(file) == 0 && written) rename(built, path);
        }
    }
    free(program->image);
    program->image = make_image(program->text, names);
    free(names);
    return 0;
}
Status nvrtcGetProgramLogSize(Program program, size_t *bytes) { return REAL(nvrtcGetProgramLogSize, void *, size_t *)(program->real, bytes); }
Status nvrtcGetProgramLog(Program program, char *log) { return REAL(nvrtcGetProgramLog, void *, char *)(program->real, log); }

// Both forms are the image, with the NUL that ends it.
Status nvrtcGetCUBINSize(Program program, size_t *bytes) { *bytes = program->image ? strlen(program->image) + 1 : 0; return program->image ? 0 : 4; }
Status nvrtcGetCUBIN(Program program, char *to) { return program->image ? strcpy(to, program->image), 0 : 4; }
Status nvrtcGetPTXSize(Program program, size_t *bytes) { return nvrtcGetCUBINSize(program, bytes); }
Status nvrtcGetPTX(Program program, char *to) { return nvrtcGetCUBIN(program, to); }
