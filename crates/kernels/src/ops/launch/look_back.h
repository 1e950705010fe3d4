/* Prefix sums in one pass (Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled
   Look-back, 2016). A tile tells later ones its own sum, adds up those before it, and tells the sum
   of all. `tiles` has a ticket and a state for each tile, all ones at first. A state is a sum
   times 4, plus 1 for the tile's own or 2 for that of all tiles up to it. */
/* The next tile. A tile waits for lower ones alone, which work-groups have taken before. So their
   order does not matter, but a work-group that has begun must go on beside others. Every known GPU
   and CPU does that. All work-items take part. */
FN u64 next_tile(volatile G u64 *tiles, L u32 *shared) {
  if (LID() == 0) *shared = A_ADD32((volatile G u32 *)tiles, 1u) + 1;
  SYNC();
  u64 tile = *shared;
  SYNC();
  return tile;
}
/* The sum of all tiles before `tile`, whose own is `sum`. All work-items take part, and 32 look
   back. `sums` has 32 elements. */
FN u64 look_back(volatile G u64 *tiles, u64 tile, u64 sum, L u64 *sums, L u32 *nearest) {
  volatile G u64 *states = tiles + 1;
  u32 l = LID();
  u64 before = 0;
  if (l == 0) A_STORE64(&states[tile], sum << 2 | (tile ? 1 : 2));
  for (u64 end = tile; end > 0; end -= 32) {
    u64 state = 2;
    if (l < 32 && l < end) do state = A_LOAD64(&states[end - 1 - l]); while (state == NO_ROW);
    if (l == 0) *nearest = 32;
    SYNC();
    if (l < 32 && (state & 3) == 2) A_MIN32(nearest, l);
    SYNC();
    u32 last = *nearest;
    if (l < 32) sums[l] = l <= last ? state >> 2 : 0;
    SYNC();
    for (u32 d = 16; d > 0; d >>= 1) {
      if (l < d) sums[l] += sums[l + d];
      SYNC();
    }
    before += sums[0];
    SYNC();
    if (last < 32) break;
  }
  if (l == 0 && tile) A_STORE64(&states[tile], (before + sum) << 2 | 2);
  return before;
}
