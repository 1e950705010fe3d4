// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "fiber.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK_BYTES = 256 << 10, PAGE = 4096 };

// The lowest page of a stack is inaccessible.
struct Stack { struct Stack *next; char *low; };

static struct Stack *free_stacks;
static void *entered_from;

// Saves the registers that a call preserves, and continues at another stack.
void emulator_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(
    ".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size emulator_switch,.-emulator_switch\n");
enum { SAVED_WORDS = 8, RETURN_WORD = 6 };
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,%function\nemulator_switch:\n"
    "sub sp,sp,#176\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
    "stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#176\nret\n");
enum { SAVED_WORDS = 22, RETURN_WORD = 11 };
#else
#error "no switch of stacks for this processor"
#endif

static struct Stack *take_stack(void) {
    struct Stack *stack = free_stacks;
    if (stack) {
        free_stacks = stack->next;
        return stack;
    }
    char *low = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (low == MAP_FAILED) return NULL;
    mprotect(low, PAGE, PROT_NONE);
    stack = malloc(sizeof *stack);
    *stack = (struct Stack){NULL, low};
    return stack;
}

int enter_fiber(struct Fiber *fiber, void (*body)(void)) {
    if (!fiber->sp) {
        if (!(fiber->stack = take_stack())) return 0;
        // Two words above keep the alignment that a call leaves.
        void **top = (void **)(fiber->stack->low + STACK_BYTES) - SAVED_WORDS - 2;
        memset(top, 0, (SAVED_WORDS + 2) * sizeof *top);
        top[RETURN_WORD] = (void *)body;
        fiber->sp = top;
    }
    emulator_switch(&entered_from, fiber->sp);
    return 1;
}

void leave_fiber(struct Fiber *fiber) { emulator_switch(&fiber->sp, entered_from); }

void end_fiber(struct Fiber *fiber) {
    if (fiber->stack) {
        fiber->stack->next = free_stacks;
        free_stacks = fiber->stack;
    }
    *fiber = (struct Fiber){0};
}
