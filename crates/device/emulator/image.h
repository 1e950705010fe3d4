// SPDX-License-Identifier: Apache-2.0
// The emulator's images: a kernel text with the names of its kernels, in place of machine code.
//
// An image begins as PTX does for the driver under test, so that it finds the names:
//
//     /* .version of the emulator
//     .entry first(
//     .entry second(
//     */
//     the text
//     EMULATED_KERNEL(first, most threads of a block)
#pragma once
#include <stddef.h>

// The image of a text. `names` are separated by spaces; a colon and the launch bound may follow
// each. The caller frees the image.
char *make_image(const char *text, const char *names);

// Compiles an image, or takes it from the folder of earlier ones, and loads it. NULL after a
// failure, with the compiler's messages in `log`.
void *load_image(const char *image, char *log, size_t log_bytes);

// A path in the folder of compiled images: 16 digits of a hash of `text`, then `suffix`.
void cached_path(char *path, size_t bytes, const char *text, const char *suffix);

// Whether a file exists.
int file_exists(const char *path);
