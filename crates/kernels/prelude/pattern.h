/* LIKE and ILIKE of constant patterns, which src/codegen/pattern compiles.
   - A character is a class. Class 0 has those that the pattern lacks, another class those equal to
     one of the pattern's characters. An element is a class, or ANY_CLASS for `_`.
   - Parts are what the pattern has before its last `%`. Their elements stand where the part before
     ends, or are found from there on. The first and the last of those found are no `_`.
   The pattern's offsets are in bytes, from its start. */
#define ANY_CLASS 255
typedef struct {
  u32 parts;
  /* The elements behind the last `%`, at the end of the text. `whole`: there is no `%`. */
  u32 last, last_at, whole;
  /* The classes of ASCII, and a hash table of other characters: code point or 0, and class. */
  u32 ascii_at, others_at, others_mask;
} like_pattern;
typedef struct {
  u32 is_found;
  /* The elements that stand. Of those found, the ones behind the first SLICE. */
  u32 elements, elements_at;
  /* The least number of bytes of this part and of those behind it. */
  u32 least;
  /* If `has_probe`: bytes of every match of the part, `back` bytes or less from its start, as of
     `byte_probe`. */
  u32 has_probe, a, b, c, next, distance, back;
  /* For each class a word: which of the first SLICE elements it is. The last element is the highest
     bit, the first one bit `first`. */
  u32 slice_at, first;
  /* With more elements: rows of `wide` words16, in which the last element is the highest bit. The
     first row has the first element, the others tell for each class which elements it is. */
  u32 wide_at, wide;
} like_part;
#define SLICE 64
#define WIDEST 4
/* A text, with the classes of its characters. */
typedef struct { str s; const G u8 *ascii; const G u32 *others; u32 mask; } classed;
COLD_FN character other_class(str s, u32 i, const G u32 *others, u32 mask) {
  character c = str_at(s, i);
  u32 slot = c.code & mask;
  while (others[2 * slot] && others[2 * slot] != c.code) slot = (slot + 1) & mask;
  c.code = others[2 * slot + 1];
  return c;
}
/* The class of the character at `i`, which moves on. */
FN u32 class_at(classed t, u32 *i) {
  u32 c = t.s.p[*i];
  if (c < 0x80) {
    ++*i;
    return t.ascii[c];
  }
  character other = other_class(t.s, *i, t.others, t.mask);
  *i = other.next;
  return other.code;
}
/* Whether elements stand at `i`. If so, `i` moves behind them. */
FN i32 elements_stand(classed t, u32 *i, const G u8 *elements, u32 n) {
  for (u32 k = 0; k < n; ++k) {
    if (*i >= t.s.len) return 0;
    u32 c = class_at(t, i);
    if (elements[k] != c && elements[k] != ANY_CLASS) return 0;
  }
  return 1;
}
/* The first offset from `i` at which a part may begin; the end without one. */
FN u32 part_from(str s, u32 i, byte_probe *x, u32 back) {
  u32 at = str_probe(s, i, x);
  if (at == s.len || at - i <= back) return at == s.len ? at : i;
  for (at -= back; at < s.len && !is_first(s.p[at]); ++at) {}
  return at;
}
/* Finds all elements of a part from `at` on, in linear time, and moves `at` behind what was read. A
   bit tells whether the text so far ends with the elements up to it. (Baeza-Yates and Gonnet, "A
   new approach to text searching", 1992.) 2 where no element has matched: the search is over, but
   not the text. */
FN i32 find_all(classed t, u32 *at, const G u64 *rows, u32 n) {
  words16 state[WIDEST];
  const G u64 *start = rows;
  u32 until = 256;
  for (u32 k = 0; k < n; ++k) state[k] = LOAD_WORDS16(start + 16 * k);
  for (u32 read = 1; *at < t.s.len; ++read) {
    const G u64 *row = rows + 16 * n * (1 + class_at(t, at));
    u64 carry = 0;
    for (u32 k = 0; k < n; ++k) ADVANCE16(state[k], row + 16 * k, start + 16 * k, carry);
    if (carry) return 1;
    if (read < until) continue;
    i32 differs = 0;
    for (u32 k = 0; k < n; ++k) differs |= DIFFERS16(state[k], start + 16 * k);
    if (!differs) return 2;
    until = read + 256;
  }
  return 0;
}
/* The state stays in registers where its size is constant. */
COLD_FN i32 find_all_of_1024(classed t, u32 *at, const G u64 *rows) { return find_all(t, at, rows, 1); }
COLD_FN i32 find_all_of_more(classed t, u32 *at, const G u64 *rows, u32 n) { return find_all(t, at, rows, n); }
/* Finds a part from `at` on, and moves `at` behind it: as find_all for the first SLICE elements,
   behind which the others have to stand. After much work in vain, by find_all. */
FN i32 part_find(classed t, u32 *at, const G u8 *base, const G like_part *p) {
  const G u64 *rows = (const G u64 *)(base + p->slice_at), *all = (const G u64 *)(base + p->wide_at);
  u64 first = (u64)1 << p->first, work = 0;
  byte_probe x = byte_probe_make(p->a, p->b, p->c, p->next, p->distance);
  for (u32 from = *at, i = from;;) {
    if (t.s.len - i < p->least) return 0;
    if (p->has_probe) i = part_from(t.s, i, &x, p->back);
    u64 state = first;
    do {
      if (i >= t.s.len) return 0;
      u64 matched = state & rows[class_at(t, &i)];
      state = matched << 1 | first;
      if (!(matched >> 63)) continue;
      *at = i;
      if (elements_stand(t, at, base + p->elements_at, p->elements)) return 1;
      work += *at - i + 1;
      if (!find_is_slow(work, i - from)) continue;
      /* On from the second character of what matched. */
      *at = str_skip_back(str_make(t.s.p, i), SLICE - 1);
      if (*at < from) *at = from;
      i32 found = p->wide == 1 ? find_all_of_1024(t, at, all) : find_all_of_more(t, at, all, p->wide);
      if (found < 2) return found;
      from = i = *at;
      work = 0;
      state = first;
    } while (state != first);
  }
}
/* Whether a string matches the pattern at `base`. */
COLD_FN i32 pattern_matches(str s, const G u8 *base) {
  const G like_pattern *pattern = (const G like_pattern *)base;
  const G like_part *p = (const G like_part *)(pattern + 1);
  classed t;
  t.s = s;
  t.ascii = base + pattern->ascii_at;
  t.others = (const G u32 *)(base + pattern->others_at);
  t.mask = pattern->others_mask;
  u32 end = s.len, i;
  for (u32 k = pattern->last; k > 0; --k) {
    if (end == 0) return 0;
    end = str_previous(s, end);
  }
  if (pattern->whole && end > 0) return 0;
  i = end;
  if (!elements_stand(t, &i, base + pattern->last_at, pattern->last)) return 0;
  t.s.len = end;
  i = 0;
  for (u32 k = pattern->parts; k > 0; --k, ++p)
    if (!(p->is_found ? part_find(t, &i, base, p) : elements_stand(t, &i, base + p->elements_at, p->elements))) return 0;
  return 1;
}
