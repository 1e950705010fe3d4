// SPDX-License-Identifier: Apache-2.0
// The functions of lib.rs. The structs are those of the Arrow C Device data interface: of Arrow C++'s arrow/c/abi.h, of
// nanoarrow's header, or of crates/arrow-device/include/arrow_device.h.
//
// Each returns NULL, or a text that says what went wrong and goes back to peers_free_text. Inputs are taken in every case,
// outputs are only written on success.
#ifndef PEERS_H
#define PEERS_H

#ifdef __cplusplus
extern "C" {
#endif

struct ArrowSchema;
struct ArrowDeviceArray;
struct ArrowDeviceArrayStream;

// Runs a query over the rows of a stream, which are the table `t`. All of it runs on the device, or it is an error. The
// result stays in memory of the device if `on_device` is not 0; otherwise it is collected in host memory.
char *peers_query(const char *sql, struct ArrowDeviceArrayStream *rows, int on_device, struct ArrowDeviceArrayStream *out);

// Makes a stream of one record batch.
char *peers_stream(struct ArrowDeviceArray *array, struct ArrowSchema *columns, struct ArrowDeviceArrayStream *out);

void peers_free_text(char *text);

#ifdef __cplusplus
}
#endif

#endif  // PEERS_H
