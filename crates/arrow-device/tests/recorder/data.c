// SPDX-License-Identifier: Apache-2.0
// Schemas and arrays: built for the other side, and checked when they come from it.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

// ---- Schemas of the recorder --------------------------------------------------------------------

typedef struct {
    struct ArrowSchema *parent;  // NULL for the root.
    struct ArrowSchema *self;    // The address of a child.
    int in_parents_release;
    const void *owned[4];
    struct ArrowSchema top, first;  // The schema and its first column before they were malformed.
} SchemaState;

static void release_schema(struct ArrowSchema *self) {
    Block *block = find(self->private_data, SCHEMA);
    if (!block) {
        orphan(41, "a schema is released with foreign private_data");
        self->release = NULL;
        return;
    }
    Session *s = block->s;
    if (!block->live) {
        violation(s, 39, "a schema is released twice");
        return;
    }
    SchemaState *state = self->private_data;
    if (state->self == self && !state->in_parents_release) violation(s, 39, "a child schema is released, not its parent");
    for (int64_t i = 0; i < self->n_children; i++) {
        struct ArrowSchema *child = self->children[i];
        if (child->release) {
            ((SchemaState *)child->private_data)->in_parents_release = 1;
            child->release(child);
        }
        drop(child);
    }
    if (self->dictionary) {
        if (self->dictionary->release) {
            ((SchemaState *)self->dictionary->private_data)->in_parents_release = 1;
            self->dictionary->release(self->dictionary);
        }
        drop(self->dictionary);
    }
    if (!state->self) note(s, "release schema");
    for (int i = 0; i < 4; i++) drop((void *)(uintptr_t)state->owned[i]);
    drop(state);
    self->release = NULL;
}

static void schema_make(Session *s, struct ArrowSchema *out, struct ArrowSchema *parent, const char *format, const char *name,
                        int64_t flags, int64_t n_children) {
    SchemaState *state = take(s, SCHEMA, sizeof *state, parent ? 0 : 39, "a schema", NULL);
    struct ArrowSchema **children = NULL;
    if (n_children) children = take(s, BYTES, sizeof *children * (size_t)n_children, 0, "children of a schema", NULL);
    for (int64_t i = 0; i < n_children; i++) children[i] = take(s, BYTES, sizeof **children, 0, "a child schema", NULL);
    *out = (struct ArrowSchema){
        .format = take_copy(s, format, strlen(format) + 1, "a format"),
        .name = take_copy(s, name, strlen(name) + 1, "a name"),
        .metadata = parent ? NULL : make_metadata(s),
        .flags = flags, .n_children = n_children, .children = children,
        .release = release_schema, .private_data = state,
    };
    *state = (SchemaState){.parent = parent, .self = parent ? out : NULL, .owned = {out->format, out->name, out->metadata, children}};
}

// Malformations that every importer must detect.
enum {
    RELEASED_SCHEMA = 1, NO_FORMAT, UNKNOWN_FORMAT, NEGATIVE_CHILDREN, NO_SCHEMA_CHILDREN, NULL_SCHEMA_CHILD, NAME_NO_TEXT, CHILD_NO_FORMAT,
    CHILD_EMPTY_FORMAT, TOO_FEW_CHILDREN, CHILD_FORMAT_CUT, STRAY_DICTIONARY, END_OF_MALFORMED_SCHEMA
};

static void release_malformed_schema(struct ArrowSchema *self) {
    Block *block = find(self->private_data, SCHEMA);
    if (block && block->live) {
        SchemaState *state = self->private_data;
        void *children = (void *)(uintptr_t)state->owned[3];
        *self = state->top;
        self->children = children;
        self->children[0] = block->aux;
        *self->children[0] = state->first;
    }
    release_schema(self);
}

static void malform_schema(Session *s, struct ArrowSchema *top) {
    SchemaState *state = top->private_data;
    struct ArrowSchema *first = top->children[0];
    state->top = *top;
    state->first = *first;
    find(state, SCHEMA)->aux = first;
    top->release = release_malformed_schema;
    switch (option(s, "malformed_schema")) {
    case RELEASED_SCHEMA:
        top->release(top);
        memset(top, 0, sizeof *top);
        break;
    case NO_FORMAT: top->format = NULL; break;
    case UNKNOWN_FORMAT: first->format = "Q"; break;
    case NEGATIVE_CHILDREN: top->n_children = -1; break;
    case NO_SCHEMA_CHILDREN: top->children = NULL; break;
    case NULL_SCHEMA_CHILD: top->children[0] = NULL; break;
    case NAME_NO_TEXT: first->name = "\xff\xfe"; break;
    case CHILD_NO_FORMAT: first->format = NULL; break;
    case CHILD_EMPTY_FORMAT: first->format = ""; break;
    case TOO_FEW_CHILDREN: first->format = "+l"; break;
    case CHILD_FORMAT_CUT: first->format = "d:10"; break;
    case STRAY_DICTIONARY: first->format = "+s", first->dictionary = top->children[top->n_children - 1]; break;
    default: break;
    }
}

void rec_make_schema(Session *s, struct ArrowSchema *out) {
    int64_t shape = option(s, "shape");
    if (shape == 3) {
        schema_make(s, out, NULL, "i", "", ARROW_FLAG_NULLABLE, 0);
        return;
    }
    static const struct { const char *format, *name; int64_t flags, children; } COLUMNS[] = {
        {"i", "a", ARROW_FLAG_NULLABLE, 0}, {"u", "b", 0, 0}, {"b", "c", ARROW_FLAG_NULLABLE, 0}, {"+l", "d", 0, 1},
        {"c", "e", ARROW_FLAG_NULLABLE, 0}, {"+s", "f", 0, 1}, {"d:10,2", "g", 0, 0}, {"vu", "h", 0, 0},
        {"n", "i", ARROW_FLAG_NULLABLE, 0}, {"w:3", "j", 0, 0},
    };
    int64_t columns = shape == 0 ? 10 : shape == 1 ? 1 : 0;
    schema_make(s, out, NULL, "+s", "", 0, columns);
    for (int64_t i = 0; i < columns; i++) {
        struct ArrowSchema *child = out->children[i];
        schema_make(s, child, out, COLUMNS[i].format, COLUMNS[i].name, COLUMNS[i].flags, COLUMNS[i].children);
        if (i == 3) schema_make(s, child->children[0], child, "l", "item", 0, 0);
        if (i == 5) schema_make(s, child->children[0], child, "g", "x", 0, 0);
        if (i == 4) {
            child->dictionary = take(s, BYTES, sizeof *child, 0, "a dictionary's schema", NULL);
            schema_make(s, child->dictionary, child, "u", "", 0, 0);
        }
    }
    if (option(s, "malformed_schema") && columns) malform_schema(s, out);
}

// ---- Arrays of the recorder ---------------------------------------------------------------------

enum { MAX_BUFFERS = 4 };

typedef struct ArrayState {
    struct ArrowArray *self;  // The address of a child; NULL for the root.
    int in_parents_release;
    void *buffers[MAX_BUFFERS];   // As allocated.
    void *at[MAX_BUFFERS];        // As exported: one byte later if misaligned.
    void *hidden[MAX_BUFFERS];    // The data, before the event.
    size_t bytes[MAX_BUFFERS];
    uint64_t sums[MAX_BUFFERS];
    const void **table;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    int64_t n_children;
    void *event;
    struct ArrayState *next;  // The next array behind the same event.
} ArrayState;

typedef struct { ArrayState *arrays; int waited; } EventState;

static void release_array(struct ArrowArray *self) {
    Block *block = find(self->private_data, ARRAY);
    if (!block) {
        orphan(41, "an array is released with foreign private_data");
        self->release = NULL;
        return;
    }
    Session *s = block->s;
    if (!block->live) {
        violation(s, 39, "an array is released twice");
        return;
    }
    ArrayState *state = self->private_data;
    if (state->self == self && !state->in_parents_release) violation(s, 39, "a child array is released, not its parent");
    CHECK(s, 41, self->buffers == state->table && self->children == state->children && self->dictionary == state->dictionary,
          "an array comes back with other pointers");
    for (int i = 0; i < MAX_BUFFERS; i++) {
        if (!state->buffers[i]) continue;
        CHECK(s, 26, sum_bytes(state->at[i], state->bytes[i]) == state->sums[i], "buffer %d has been written to", i);
        CHECK(s, 26, !state->table || self->buffers != state->table || self->buffers[i] == state->at[i] || option(s, "malformed"),
              "the table of buffers has been written to");
        drop(state->buffers[i]);
        if (state->hidden[i]) drop(state->hidden[i]);
    }
    for (int64_t i = 0; i < state->n_children; i++) {
        struct ArrowArray *child = state->children[i];
        if (child->release) {
            ((ArrayState *)child->private_data)->in_parents_release = 1;
            child->release(child);
        }
        drop(child);
    }
    if (state->dictionary) {
        if (state->dictionary->release) {
            ((ArrayState *)state->dictionary->private_data)->in_parents_release = 1;
            state->dictionary->release(state->dictionary);
        }
        drop(state->dictionary);
    }
    int child = state->self != NULL;
    if (!child) {
        note(s, "release array");
        drop(state->event);
    }
    drop(state->table);
    drop(state->children);
    drop(state);
    if (child || !mutant(s, "an array is left unreleased")) self->release = NULL;
}

typedef struct { char *at; size_t bytes; } Bytes;  // A growing buffer.

static void put(Bytes *to, const void *from, size_t bytes) {
    to->at = realloc(to->at, to->bytes + bytes + 1);
    memcpy(to->at + to->bytes, from, bytes);
    to->bytes += bytes;
}

static void put_bit(Bytes *to, int64_t at, int bit) {
    while ((int64_t)to->bytes * 8 <= at) put(to, "", 1);
    if (bit) to->at[at / 8] = (char)(to->at[at / 8] | 1 << at % 8);
}

static ArrayState *array_begin(Session *s, struct ArrowArray *out, int child, int64_t length, int64_t null_count, int64_t offset,
                               int64_t n_buffers, int64_t n_children) {
    ArrayState *state = take(s, ARRAY, sizeof *state, child ? 0 : 39, "an array", NULL);
    if (n_buffers) state->table = take(s, BYTES, sizeof(void *) * (size_t)n_buffers, 0, "a table of buffers", NULL);
    state->n_children = n_children;
    if (n_children) state->children = take(s, BYTES, sizeof(void *) * (size_t)n_children, 0, "children of an array", NULL);
    for (int64_t i = 0; i < n_children; i++) state->children[i] = take(s, BYTES, sizeof *out, 0, "a child array", NULL);
    state->self = child ? out : NULL;
    *out = (struct ArrowArray){
        .length = length, .null_count = option(s, "uncounted") ? -1 : null_count, .offset = offset,
        .n_buffers = n_buffers, .n_children = n_children, .buffers = state->table, .children = state->children,
        .release = release_array, .private_data = state,
    };
    return state;
}

// Moves the bytes to buffer i. Empty buffers stay NULL, as the interface allows (R46).
static void array_put(Session *s, struct ArrowArray *array, int i, Bytes *bytes) {
    ArrayState *state = array->private_data;
    if (bytes->bytes) {
        int64_t shift = option(s, "misaligned") != 0;
        char *at = take(s, BYTES, bytes->bytes + (size_t)shift, 0, "a buffer", NULL);
        state->buffers[i] = at;
        state->at[i] = at + shift;
        memcpy(state->at[i], bytes->at, bytes->bytes);
        state->bytes[i] = bytes->bytes;
        state->sums[i] = sum_bytes(bytes->at, bytes->bytes);
        state->table[i] = state->at[i];
    }
    free(bytes->at);
    *bytes = (Bytes){NULL, 0};
}

// Rows before the first batch repeat those after it; only an offset of the batch exposes them.
static int64_t row_number(int64_t row) { return row < 0 ? -row : row; }

// A string column or dictionary of `rows` strings, after `offset` others.
static void strings_make(Session *s, struct ArrowArray *out, int64_t first, int64_t rows, int64_t offset, int view) {
    Bytes offsets = {NULL, 0}, bytes = {NULL, 0}, views = {NULL, 0};
    int32_t end = 0;
    put(&offsets, &end, 4);
    for (int64_t i = -offset; i < rows; i++) {
        int64_t g = row_number(first + i);
        char string[64];
        if (i < 0) strcpy(string, "unused");
        else if (view == 2) strcpy(string, g == 0 ? "red" : g == 1 ? "green" : "blue");
        else if (view) snprintf(string, sizeof string, g % 2 ? "a string that is number %" PRId64 : "s%" PRId64, g);
        else if (g % 5 == 4) string[0] = 0;
        else snprintf(string, sizeof string, g % 4 == 0 ? "\xc3\xa9%" PRId64 : "row%" PRId64, g);
        int32_t length = (int32_t)strlen(string);
        if (view == 1) {
            char cell[16] = {0};
            memcpy(cell, &length, 4);
            if (length <= 12) {
                memcpy(cell + 4, string, (size_t)length);
            } else {
                int32_t at = (int32_t)bytes.bytes;
                memcpy(cell + 4, string, 4);
                memcpy(cell + 12, &at, 4);
                put(&bytes, string, (size_t)length);
            }
            put(&views, cell, 16);
        } else {
            put(&bytes, string, (size_t)length);
            end = (int32_t)bytes.bytes;
            put(&offsets, &end, 4);
        }
    }
    if (view == 1) {
        int64_t length = (int64_t)bytes.bytes;
        array_begin(s, out, 1, rows, 0, offset, 4, 0);
        array_put(s, out, 1, &views);
        array_put(s, out, 2, &bytes);
        Bytes lengths = {NULL, 0};
        put(&lengths, &length, 8);
        array_put(s, out, 3, &lengths);
        free(offsets.at);
    } else {
        array_begin(s, out, 1, rows, 0, offset, 3, 0);
        array_put(s, out, 1, &offsets);
        array_put(s, out, 2, &bytes);
    }
}

static void int32_make(Session *s, struct ArrowArray *out, int child, int64_t first, int64_t rows, int64_t offset) {
    Bytes bits = {NULL, 0}, values = {NULL, 0};
    int64_t nulls = 0;
    for (int64_t i = -offset; i < rows; i++) {
        int64_t g = row_number(first + i);
        int null = i >= 0 && g % 3 == 2;
        int32_t value = i < 0 ? -99 : null ? 77 : (int32_t)(g * 3 - 1);
        put_bit(&bits, offset + i, !null);
        put(&values, &value, 4);
        nulls += null;
    }
    array_begin(s, out, child, rows, nulls, offset, 2, 0);
    array_put(s, out, 0, &bits);
    array_put(s, out, 1, &values);
}

static void column_make(Session *s, struct ArrowArray *out, int column, int64_t first, int64_t rows, int64_t offset) {
    Bytes bits = {NULL, 0}, values = {NULL, 0}, items = {NULL, 0};
    int64_t nulls = 0;
    switch (column) {
    case 0: int32_make(s, out, 1, first, rows, offset); break;
    case 1: strings_make(s, out, first, rows, offset, 0); break;
    case 7: strings_make(s, out, first, rows, offset, 1); break;
    case 2:
        for (int64_t i = -offset; i < rows; i++) {
            int null = i >= 0 && row_number(first + i) % 4 == 3;
            put_bit(&bits, offset + i, !null);
            put_bit(&values, offset + i, i >= 0 && row_number(first + i) % 2 == 0);
            nulls += null;
        }
        array_begin(s, out, 1, rows, nulls, offset, 2, 0);
        array_put(s, out, 0, &bits);
        array_put(s, out, 1, &values);
        break;
    case 3: {
        int32_t end = 0;
        put(&values, &end, 4);
        for (int64_t i = -offset; i < rows; i++) {
            for (int64_t j = 0; i >= 0 && j < row_number(first + i) % 3; j++, end++) {
                int64_t item = row_number(first + i) * 10 + j;
                put(&items, &item, 8);
            }
            put(&values, &end, 4);
        }
        array_begin(s, out, 1, rows, 0, offset, 2, 1);
        array_put(s, out, 1, &values);
        array_begin(s, out->children[0], 1, end, 0, 0, 2, 0);
        array_put(s, out->children[0], 1, &items);
        break;
    }
    case 4:
        for (int64_t i = -offset; i < rows; i++) {
            int64_t g = row_number(first + i);
            int null = i >= 0 && g % 5 == 1;
            char index = (char)(i < 0 || null ? 0 : g % 3);
            put_bit(&bits, offset + i, !null);
            put(&values, &index, 1);
            nulls += null;
        }
        ArrayState *state = array_begin(s, out, 1, rows, nulls, offset, 2, 0);
        array_put(s, out, 0, &bits);
        array_put(s, out, 1, &values);
        state->dictionary = out->dictionary = take(s, BYTES, sizeof *out, 0, "a dictionary", NULL);
        strings_make(s, out->dictionary, 0, 3, 0, 2);
        break;
    case 5:
        for (int64_t i = -offset; i < rows; i++) {
            double value = i < 0 ? -1 : (double)row_number(first + i) / 2;
            put(&values, &value, 8);
        }
        // A nested struct keeps its own offset, and its child has as many elements as offset and
        // length.
        array_begin(s, out, 1, rows, 0, offset, 1, 1);
        array_begin(s, out->children[0], 1, rows + offset, 0, 0, 2, 0);
        array_put(s, out->children[0], 1, &values);
        break;
    case 6:
        for (int64_t i = -offset; i < rows; i++) {
            int64_t value[2] = {i < 0 ? -1 : row_number(first + i) * 100, 0};
            put(&values, value, 16);
        }
        array_begin(s, out, 1, rows, 0, offset, 2, 0);
        array_put(s, out, 1, &values);
        break;
    case 8: array_begin(s, out, 1, rows, rows, offset, 0, 0); break;
    default:
        for (int64_t i = -offset; i < rows; i++) {
            char value[3] = {(char)row_number(first + i), (char)(row_number(first + i) + 1), 0};
            put(&values, value, 3);
        }
        array_begin(s, out, 1, rows, 0, offset, 2, 0);
        array_put(s, out, 1, &values);
    }
}

static void hide(Session *s, struct ArrowArray *array, EventState *event) {
    ArrayState *state = array->private_data;
    for (int i = 0; i < MAX_BUFFERS; i++) {
        // The lengths of variadic buffers are host memory (R35).
        if (!state->buffers[i] || (i == 3 && array->n_buffers == 4)) continue;
        state->hidden[i] = take_copy(s, state->at[i], state->bytes[i], "data behind an event");
        memset(state->at[i], 0xAB, state->bytes[i]);
        state->sums[i] = sum_bytes(state->at[i], state->bytes[i]);
    }
    state->next = event->arrays;
    event->arrays = state;
    for (int64_t i = 0; i < array->n_children; i++) hide(s, array->children[i], event);
    if (array->dictionary) hide(s, array->dictionary, event);
}

void rec_event_wait(void *sync_event) {
    Block *block = find(sync_event, EVENT);
    if (!block) {
        orphan(48, "something is waited for that is no event");
        return;
    }
    if (!block->live) {
        violation(block->s, 42, "an event is waited for after the release of its array");
        return;
    }
    note(block->s, "wait for event");
    EventState *event = sync_event;
    if (event->waited) return;
    event->waited = 1;
    for (ArrayState *state = event->arrays; state; state = state->next)
        for (int i = 0; i < MAX_BUFFERS; i++)
            if (state->hidden[i]) {
                memcpy(state->at[i], state->hidden[i], state->bytes[i]);
                state->sums[i] = sum_bytes(state->at[i], state->bytes[i]);
            }
}

// The malformations of R45 and similar rules, on a batch of all columns (shape 0) unless noted.
enum {
    WELL_FORMED, N_BUFFERS_SHORT, N_BUFFERS_LONG, N_CHILDREN_SHORT, NEGATIVE_LENGTH, NEGATIVE_OFFSET, NO_DATA, SHORT_CHILD,
    NO_CHILDREN_TABLE, TOO_MANY_NULLS, NO_ITEMS, NO_DICTIONARY, NO_BUFFERS_TABLE, HUGE_LENGTH, NULLS_WITHOUT_BITMAP, NO_OFFSETS,
    NULL_CHILD, EXTRA_DICTIONARY, N_BUFFERS_NEGATIVE, N_CHILDREN_NEGATIVE, RELEASED_CHILD, NULL_COUNT_STRANGE, HUGE_OFFSET,
    NO_STRINGS, VIEW_NO_LENGTHS, OFFSETS_DESCEND, OFFSETS_PAST_ITEMS, END_OF_MALFORMED
};

static void malform(Session *s, struct ArrowArray *top) {
    struct ArrowArray *a = top->n_children ? top->children[0] : top;
    struct ArrowArray *b = top->n_children > 1 ? top->children[1] : top;
    struct ArrowArray *d = top->n_children > 3 ? top->children[3] : top;
    struct ArrowArray *e = top->n_children > 4 ? top->children[4] : top;
    ArrayState *state;
    switch (option(s, "malformed")) {
    case N_BUFFERS_SHORT: a->n_buffers--; break;
    case N_BUFFERS_LONG: b->n_buffers = 2; break;
    case N_CHILDREN_SHORT: top->n_children--; break;
    case NEGATIVE_LENGTH: a->length = -1; break;
    case NEGATIVE_OFFSET: a->offset = -1; break;
    case NO_DATA: a->buffers[1] = NULL; break;
    case SHORT_CHILD: a->length--; break;
    case NO_CHILDREN_TABLE: top->children = NULL; break;
    case TOO_MANY_NULLS: a->null_count = a->length + 1; break;
    case NO_ITEMS: d->children[0]->buffers[1] = NULL; break;
    case NO_DICTIONARY: e->dictionary = NULL; break;
    case NO_BUFFERS_TABLE: a->buffers = NULL; break;
    case HUGE_LENGTH: a->length = INT64_MAX; break;
    case NULLS_WITHOUT_BITMAP: a->buffers[0] = NULL; break;
    case NO_OFFSETS: b->buffers[1] = NULL; break;
    case NULL_CHILD: top->children[0] = NULL; break;
    case EXTRA_DICTIONARY: a->dictionary = b; break;
    case N_BUFFERS_NEGATIVE: a->n_buffers = -1; break;
    case N_CHILDREN_NEGATIVE: top->n_children = -1; break;
    case RELEASED_CHILD:
        ((ArrayState *)a->private_data)->in_parents_release = 1;
        a->release(a);
        break;
    case NULL_COUNT_STRANGE: a->null_count = -2; break;
    case HUGE_OFFSET: a->offset = INT64_MAX - 1; break;
    case NO_STRINGS: b->buffers[2] = NULL; break;
    case VIEW_NO_LENGTHS: top->children[7]->buffers[3] = NULL; break;
    case OFFSETS_DESCEND:
    case OFFSETS_PAST_ITEMS:
        state = d->private_data;
        ((int32_t *)state->at[1])[1] = option(s, "malformed") == OFFSETS_DESCEND ? 1000 : 0;
        ((int32_t *)state->at[1])[d->length] = option(s, "malformed") == OFFSETS_DESCEND ? 2 : 1000;
        state->sums[1] = sum_bytes(state->at[1], state->bytes[1]);
        break;
    default: break;
    }
}

// The release repairs a malformed array first, so that it comes back whole.
static void release_malformed(struct ArrowArray *self) {
    Block *block = find(self->private_data, ARRAY);
    if (block && block->live) {
        ArrayState *state = self->private_data;
        self->children = state->children;
        self->n_children = state->n_children;
        self->buffers = state->table;
        self->dictionary = state->dictionary;
        if (state->n_children) state->children[0] = block->aux ? block->aux : state->children[0];
        struct ArrowArray *columns[] = {state->n_children ? state->children[0] : NULL, state->n_children > 4 ? state->children[4] : NULL};
        for (int i = 0; i < 2; i++) {
            if (!columns[i] || !columns[i]->release) continue;
            ArrayState *column = columns[i]->private_data;
            columns[i]->buffers = column->table;
            columns[i]->dictionary = column->dictionary;
        }
    }
    release_array(self);
}

int is_zeroed(const struct ArrowDeviceArray *array) {
    return all_bytes(array, 0, offsetof(struct ArrowDeviceArray, device_type)) && !array->device_type && !array->sync_event &&
           all_bytes(array->reserved, 0, sizeof array->reserved);
}

void array_make(Session *s, int64_t batch, struct ArrowDeviceArray *out) {
    int64_t rows = option(s, "rows"), first = batch * rows, shape = option(s, "shape");
    int64_t offset = option(s, "offset"), top = option(s, "top_offset");
    struct ArrowArray array;
    if (shape == 3) {
        int32_make(s, &array, 0, first, rows, offset);
    } else {
        int columns = shape == 0 ? 10 : shape == 1 ? 1 : 0;
        array_begin(s, &array, 0, rows, 0, top, 1, columns);
        // With an offset of the batch, columns begin earlier, with the rows of earlier batches.
        for (int i = 0; i < columns; i++) column_make(s, array.children[i], i, first - top, rows + top, offset);
    }
    struct ArrowDeviceArray made = {
        .array = array, .device_id = option(s, "device_id"), .device_type = (int32_t)option(s, "device_type"),
    };
    if (option(s, "array_device_type")) made.device_type = (int32_t)option(s, "array_device_type");
    if (option(s, "event")) {
        EventState *event = take(s, EVENT, sizeof *event, 0, "an event", NULL);
        hide(s, &made.array, event);
        ((ArrayState *)made.array.private_data)->event = event;
        made.sync_event = event;
    }
    // Y1: peers leave `reserved` uninitialised.
    if (option(s, "garbage")) memset(made.reserved, 0xCD, sizeof made.reserved);
    if (option(s, "malformed")) {
        find(made.array.private_data, ARRAY)->aux = shape < 2 ? made.array.children[0] : NULL;
        malform(s, &made.array);
        made.array.release = release_malformed;
    }
    // Violations for the self-test of the checks below.
    if (!option(s, "garbage") && mutant(s, "garbage in reserved")) made.reserved[2] = 1;
    if (mutant(s, "an id for the CPU")) made.device_id = 0;
    if (mutant(s, "an event for the CPU")) made.sync_event = &made;
    if (mutant(s, "an unknown null_count")) made.array.children[0]->null_count = -1;
    if (mutant(s, "a wrong null_count")) made.array.children[0]->null_count = 0;
    if (mutant(s, "a negative length")) made.array.length = -1;
    if (mutant(s, "a buffer too few")) made.array.children[1]->n_buffers = 2;
    if (mutant(s, "another device type")) made.device_type = ARROW_DEVICE_CUDA_HOST;
    *out = made;
}

void rec_make_array(Session *s, int64_t batch, struct ArrowDeviceArray *out) { array_make(s, batch, out); }

static void release_tomb(struct ArrowArray *self) {
    Block *block = find(self->private_data, TOMB);
    if (block) violation(block->s, block->rule ? block->rule : 53, "the output of a failed %s is used", block->what);
    self->release = NULL;
}

void leave_garbage(Session *s, struct ArrowDeviceArray *out, int rule, const char *what) {
    if (!option(s, "garbage")) return;
    memset(out, 0xCD, sizeof *out);
    void *tomb = take(s, TOMB, 1, rule, what, NULL);
    bury(tomb);
    out->array.private_data = tomb;
    out->array.release = release_tomb;
}

// ---- Checks -------------------------------------------------------------------------------------

static size_t digest_into(const struct ArrowSchema *schema, char *out, size_t room) {
    int64_t pairs = schema->metadata ? metadata_bytes(schema->metadata) : 0;
    size_t bytes = (size_t)snprintf(out, room, "%s/%s/%" PRId64 "/%" PRIx64 "(", schema->format, schema->name ? schema->name : "",
                                    schema->flags, pairs > 0 ? sum_bytes(schema->metadata, (size_t)pairs) : 0);
    for (int64_t i = 0; i < schema->n_children; i++)
        bytes += digest_into(schema->children[i], bytes < room ? out + bytes : NULL, bytes < room ? room - bytes : 0);
    if (schema->dictionary)
        bytes += digest_into(schema->dictionary, bytes < room ? out + bytes : NULL, bytes < room ? room - bytes : 0);
    return bytes + (size_t)snprintf(bytes < room ? out + bytes : NULL, bytes < room ? room - bytes : 0, ")");
}

char *schema_digest(const struct ArrowSchema *schema) {
    size_t bytes = digest_into(schema, NULL, 0) + 1;
    char *digest = malloc(bytes);
    digest_into(schema, digest, bytes);
    return digest;
}

// The number of buffers of a format, with its bitmap, without variadic ones. -1: unknown here.
static int64_t buffers_of(const char *format, int64_t *children) {
    *children = 0;
    if (!strcmp(format, "n")) return 0;
    if (strchr("bcCsSiIlLefg", format[0]) && !format[1]) return 2;
    if (!strncmp(format, "d:", 2) || !strncmp(format, "w:", 2) || !strncmp(format, "t", 1)) return 2;
    if (!strcmp(format, "u") || !strcmp(format, "z") || !strcmp(format, "U") || !strcmp(format, "Z")) return 3;
    if (!strcmp(format, "vu") || !strcmp(format, "vz")) return 3;
    *children = 1;
    if (!strcmp(format, "+l") || !strcmp(format, "+L") || !strcmp(format, "+m")) return 2;
    if (!strncmp(format, "+w:", 3)) return 1;
    *children = -1;
    if (!strcmp(format, "+s")) return 1;
    return -1;
}

void check_schema_struct(Session *s, const struct ArrowSchema *schema) {
    CHECK(s, 51, schema->release, "a schema is given that is released");
    if (!schema->release) return;
    CHECK(s, 28, schema->format, "a schema has no format");
    if (!schema->format) return;
    CHECK(s, 28, schema->n_children >= 0, "a schema has %" PRId64 " children", schema->n_children);
    CHECK(s, 28, (schema->flags & ~(int64_t)7) == 0, "a schema has the flags %" PRIx64, schema->flags);
    CHECK(s, 28, !schema->name || is_utf8(schema->name), "a name is not UTF-8");
    if (schema->metadata) CHECK(s, 31, metadata_bytes(schema->metadata) >= 0, "the metadata of a schema is not encoded as such");
    for (int64_t i = 0; i < schema->n_children; i++) {
        CHECK(s, 28, schema->children && schema->children[i], "child %" PRId64 " of a schema is NULL", i);
        if (schema->children && schema->children[i]) check_schema_struct(s, schema->children[i]);
    }
    if (schema->dictionary) check_schema_struct(s, schema->dictionary);
}

static int64_t width_of(const char *format) {
    switch (format[0]) {
    case 'c': case 'C': return 8;
    case 's': case 'S': case 'e': return 16;
    case 'i': case 'I': case 'f': return 32;
    case 'l': case 'L': case 'g': return 64;
    case 'b': return 1;
    case 'w': return 8 * strtoll(format + 2, NULL, 10);
    case 'd': {
        const char *bits = strchr(format, ',');
        bits = bits ? strchr(bits + 1, ',') : NULL;
        return bits ? strtoll(bits + 1, NULL, 10) : 128;
    }
    case 't':
        switch (format[1]) {
        case 'd': return format[2] == 'D' ? 32 : 64;
        case 't': return format[2] == 's' || format[2] == 'm' ? 32 : 64;
        case 'i': return format[2] == 'M' ? 32 : format[2] == 'n' ? 128 : 64;
        default: return 64;
        }
    default: return 0;
    }
}

static volatile uint64_t sink;

// Reads all bytes, so that sanitizers detect short buffers.
static void touch(const void *at, int64_t bytes) {
    if (at && bytes > 0) sink += sum_bytes(at, (size_t)bytes);
}

static int64_t offset_at(const struct ArrowArray *array, int64_t i, int large) {
    const char *at = array->buffers[1];
    if (large) {
        int64_t value;
        memcpy(&value, at + i * 8, 8);
        return value;
    }
    int32_t value;
    memcpy(&value, at + i * 4, 4);
    return value;
}

static void check_data(Session *s, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    const char *format = schema->format;
    int64_t end = array->offset + array->length;
    for (int64_t i = 0; array->n_buffers && i < array->n_buffers; i++)
        if (!array->buffers) {
            violation(s, 28, "an array of %s has no table of buffers", format);
            return;
        }
    // Unions and run ends have no bitmap.
    int has_bitmap = array->n_buffers > 0 && strncmp(format, "+u", 2) && strncmp(format, "+r", 2);
    if (has_bitmap && array->buffers[0]) {
        int64_t nulls = 0;
        for (int64_t i = array->offset; i < end; i++) nulls += !(((const uint8_t *)array->buffers[0])[i / 8] >> i % 8 & 1);
        CHECK(s, 34, array->null_count == nulls || array->null_count == -1,
              "an array of %s says %" PRId64 " NULLs and has %" PRId64, format, array->null_count, nulls);
    } else if (has_bitmap) {
        CHECK(s, 28, array->null_count <= 0, "an array of %s has %" PRId64 " NULLs and no bitmap", format, array->null_count);
    }
    CHECK(s, 34, array->null_count >= 0, "an array of %s has null_count %" PRId64, format, array->null_count);
    if (schema->dictionary) CHECK(s, 28, array->dictionary, "a dictionary is missing");
    int64_t children;
    int64_t buffers = buffers_of(format, &children);
    if (buffers < 0) return;
    if (format[0] == 'v') {
        CHECK(s, 28, array->n_buffers >= 3, "views have %" PRId64 " buffers", array->n_buffers);
        if (array->n_buffers < 3) return;
        int64_t data = array->n_buffers - 3;
        const char *lengths = array->buffers[array->n_buffers - 1];
        CHECK(s, 35, data == 0 || lengths, "views have no lengths of their buffers");
        CHECK(s, 28, array->length == 0 || array->buffers[1], "views are NULL");
        touch(array->buffers[1], end * 16);
        for (int64_t i = 0; i < data && lengths; i++) {
            int64_t bytes;
            memcpy(&bytes, lengths + i * 8, 8);
            CHECK(s, 28, bytes >= 0 && (bytes == 0 || array->buffers[2 + i]), "a variadic buffer is NULL");
            touch(array->buffers[2 + i], bytes);
        }
        return;
    }
    CHECK(s, 28, array->n_buffers == buffers, "an array of %s has %" PRId64 " buffers", format, array->n_buffers);
    if (array->n_buffers != buffers) return;
    int64_t width = width_of(format);
    if (buffers == 2 && width) {
        CHECK(s, 28, end == 0 || array->buffers[1], "an array of %s has no data", format);
        touch(array->buffers[1], (end * width + 7) / 8);
    }
    int large = format[0] == 'U' || format[0] == 'Z' || !strcmp(format, "+L");
    if (strchr("uzUZ", format[0]) || !strcmp(format, "+l") || !strcmp(format, "+L") || !strcmp(format, "+m")) {
        CHECK(s, 28, array->length == 0 || array->buffers[1], "an array of %s has no offsets", format);
        if (!array->buffers[1]) return;
        for (int64_t i = array->offset; i < end; i++)
            CHECK(s, 28, offset_at(array, i, large) <= offset_at(array, i + 1, large) && offset_at(array, i, large) >= 0,
                  "offsets of %s descend", format);
        int64_t last = array->length ? offset_at(array, end, large) : 0;
        if (format[0] != '+') {
            CHECK(s, 28, last == 0 || array->buffers[2], "an array of %s has no bytes", format);
            touch(array->buffers[2], last);
        } else if (array->n_children == 1) {
            CHECK(s, 28, last <= array->children[0]->length, "offsets of %s pass the items", format);
        }
    }
    if (!strcmp(format, "+s"))
        for (int64_t i = 0; i < array->n_children; i++)
            CHECK(s, 28, array->children[i]->length >= end, "a field of a struct is shorter than the struct");
}

static void check_tree(Session *s, const struct ArrowSchema *schema, const struct ArrowArray *array) {
    CHECK(s, 28, array->release, "part of an array is released");
    CHECK(s, 28, array->length >= 0 && array->offset >= 0, "an array of %s has length %" PRId64 ", offset %" PRId64, schema->format,
          array->length, array->offset);
    CHECK(s, 28, array->n_children == schema->n_children, "an array of %s has %" PRId64 " children", schema->format, array->n_children);
    if (!array->release || array->length < 0 || array->offset < 0 || array->n_children != schema->n_children) return;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (!array->children || !array->children[i]) {
            violation(s, 28, "child %" PRId64 " is NULL", i);
            return;
        }
        check_tree(s, schema->children[i], array->children[i]);
    }
    if (array->dictionary && schema->dictionary) check_tree(s, schema->dictionary, array->dictionary);
    check_data(s, schema, array);
}

// Whether R48 lists no event for the type.
static int has_no_event(int32_t type) {
    return type == ARROW_DEVICE_CPU || type == ARROW_DEVICE_VPI || type == ARROW_DEVICE_WEBGPU || type == ARROW_DEVICE_HEXAGON;
}

void accept_array(Session *s, struct ArrowDeviceArray *array) {
    const struct ArrowArray *inner = &array->array;
    // Every field is preset to 0xAB, and none may keep it.
    CHECK(s, 19, all_bytes(array->reserved, 0, sizeof array->reserved), "reserved is not zero");
    CHECK(s, 36, !all_bytes(&array->device_id, 0xAB, 8) && !all_bytes(&array->device_type, 0xAB, 4) &&
          !all_bytes(&array->sync_event, 0xAB, sizeof(void *)) && !all_bytes(inner, 0xAB, sizeof *inner), "a field is not written");
    if (array->device_type == ARROW_DEVICE_CPU) CHECK(s, 14, array->device_id == -1, "the CPU has the id %" PRId64, array->device_id);
    if (has_no_event(array->device_type)) CHECK(s, 22, !array->sync_event, "a type without events has one");
    if (s->device_type)
        CHECK(s, s->consumer ? 91 : 49, array->device_type == s->device_type, "device type %d from a stream of type %d",
              array->device_type, s->device_type);
    if (s->schema.release) {
        if (!strcmp(s->schema.format, "+s") && option(s, "record_batch"))
            CHECK(s, 33, inner->offset == 0 && inner->null_count == 0 && inner->n_buffers == 1 && inner->buffers && !inner->buffers[0],
                  "a batch has offset %" PRId64 ", null_count %" PRId64, inner->offset, inner->null_count);
        if (array->device_type == ARROW_DEVICE_CPU) check_tree(s, &s->schema, inner);
    }
    s->arrays = realloc(s->arrays, sizeof *s->arrays * (size_t)(s->n_arrays + 1));
    s->arrays[s->n_arrays++] = *array;
    // Moved (R40): the source is no longer live, and stored pointers to it are invalid.
    memset(array, 0xDD, sizeof *array);
    array->array.release = NULL;
    note(s, "array of %" PRId64 " rows", s->arrays[s->n_arrays - 1].array.length);
}

void accept_schema(Session *s, struct ArrowSchema *schema) {
    check_schema_struct(s, schema);
    if (!schema->release || !schema->format) return;
    char *digest = schema_digest(schema);
    if (s->digest) CHECK(s, 51, !strcmp(s->digest, digest), "the schema has changed: %.200s, then %.200s", s->digest, digest);
    free(s->digest);
    s->digest = digest;
    if (s->schema.release) s->schema.release(&s->schema);
    CHECK(s, 29, !s->schema.release, "the release of a schema is not set to NULL");
    s->schema = *schema;
    memset(schema, 0xDD, sizeof *schema);
    schema->release = NULL;
}

void rec_check_schema(Session *s, struct ArrowSchema *schema) { accept_schema(s, schema); }
void rec_check_array(Session *s, struct ArrowDeviceArray *array) { accept_array(s, array); }

int rec_take(Session *s, int64_t n, struct ArrowDeviceArray *out) {
    if (n < 0 || n >= s->n_arrays || !s->arrays[n].array.release) return -1;
    *out = s->arrays[n];
    s->arrays[n].array.release = NULL;
    return 0;
}

int rec_take_schema(Session *s, struct ArrowSchema *out) {
    if (!s->schema.release) return -1;
    *out = s->schema;
    s->schema.release = NULL;
    return 0;
}

static void release_arrays_here(void *argument) {
    Session *s = argument;
    for (int64_t i = 0; i < s->n_arrays; i++) {
        struct ArrowArray *array = &s->arrays[i].array;
        if (!array->release) continue;
        struct ArrowArray copy = *array;
        if (mutant(s, "a child is released") && array->n_children) array->children[0]->release(array->children[0]);
        if (mutant(s, "private_data is written")) array->private_data = s;
        if (mutant(s, "a buffer is written")) ((int32_t *)(uintptr_t)array->children[0]->buffers[1])[0]++;
        if (mutant(s, "an array is kept for ever")) continue;
        if (mutant(s, "an event outlives its array")) {
            void *event = s->arrays[i].sync_event;
            array->release(array);
            rec_event_wait(event);
            continue;
        }
        array->release(array);
        CHECK(s, 29, !array->release, "the release of an array is not set to NULL");
        if (mutant(s, "an array is released twice")) copy.release(&copy);
        array->release = NULL;
    }
}

// On an unrelated thread (R30).
void release_arrays(Session *s) { elsewhere(release_arrays_here, s); }
