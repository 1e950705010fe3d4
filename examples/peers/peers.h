// SPDX-License-Identifier: Apache-2.0
// The functions of lib.rs. They use the structs of the Arrow C device data interface, from Arrow
// C++'s arrow/c/abi.h, nanoarrow's header, or crates/arrow-device/include/arrow_device.h.
//
// Functions return NULL, or an error message to free with peers_free_error. Inputs are moved in any
// case, outputs are written on success only.
#ifndef PEERS_H
#define PEERS_H

#ifdef __cplusplus
extern "C" {
#endif

struct ArrowSchema;
struct ArrowDeviceArray;
struct ArrowDeviceArrayStream;

// Runs a query over the rows of a stream, which is the table `t`. Fails if an operator would run on
// the host. The result stays in device memory if `on_device` is not 0, else it is in host memory.
char *peers_query(const char *sql, struct ArrowDeviceArrayStream *rows, int on_device, struct ArrowDeviceArrayStream *out);

// Makes a stream of one record batch.
char *peers_stream(struct ArrowDeviceArray *array, struct ArrowSchema *columns, struct ArrowDeviceArrayStream *out);

void peers_free_error(char *error);

#ifdef __cplusplus
}
#endif

#endif  // PEERS_H
