// SPDX-License-Identifier: Apache-2.0
// Fibers: threads of a block on one thread of the host, which enters one after another.
#pragma once

// Zeros before it starts and after its end.
struct Fiber { void *sp; struct Stack *stack; };

// Starts `body` on a stack of its own, or continues it, until it leaves; 0 without memory. `body`
// never returns: it leaves for the last time.
int enter_fiber(struct Fiber *fiber, void (*body)(void));

// Continues after `enter_fiber`, from within the fiber.
void leave_fiber(struct Fiber *fiber);

// Gives the stack to the next fiber to start: one that never waits reuses a warm stack.
void end_fiber(struct Fiber *fiber);
