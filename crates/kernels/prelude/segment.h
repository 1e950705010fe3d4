/* Search of the segments of a LIKE pattern, which stand between its `%`, in parts of a
   concatenation. With a case table it ignores case. */
/* A character of a text: in part `s`, at byte `at`. At the end, `s` is `end`. */
typedef struct { const str *s, *end; u32 at; } cursor;
FN i32 cursor_ends(cursor c) { return c.s == c.end; }
/* The same place, never at the end of a part. */
FN cursor cursor_at(cursor c, u32 at) {
  c.at = at;
  while (c.s != c.end && c.at == c.s->len) { ++c.s; c.at = 0; }
  return c;
}
FN cursor cursor_first(const str *s, u32 n) {
  cursor c;
  c.s = s;
  c.end = s + n;
  return cursor_at(c, 0);
}
FN cursor cursor_next(cursor c) { return cursor_at(c, str_next(*c.s, c.at)); }
/* The cursor of the last `n` characters; the end if they begin before `c`. */
FN cursor cursor_last(cursor c, u32 n) {
  cursor none = c, last;
  none.s = c.end;
  none.at = 0;
  for (last = none; n > 0; --n) {
    while (last.at == 0) {
      if (last.s == c.s) return none;
      --last.s;
      last.at = last.s->len;
    }
    last.at = str_previous(*last.s, last.at);
    if (last.s == c.s && last.at < c.at) return none;
  }
  return last;
}
/* Whether a backslash at offset `j` of a pattern escapes the next character. */
FN i32 like_escapes(str p, u32 j) { return p.p[j] == '\\' && j + 1 < p.len; }
/* The end of the segment from offset `j` of a pattern. */
FN u32 like_segment(str p, u32 j) {
  while (j < p.len && p.p[j] != '%') j += 1 + (u32)like_escapes(p, j);
  return j;
}
/* The number of literal bytes of a pattern from offset `j`. */
FN u32 like_plain(str p, u32 j) {
  u32 end = j;
  while (end < p.len && p.p[end] != '%' && p.p[end] != '_' && p.p[end] != '\\') ++end;
  return end - j;
}
/* Compares a segment with the text at `c`: the offset of its first mismatch, at most `end`. `c`
   moves behind what matches. */
FN u32 like_match(cursor *c, str p, u32 j, u32 end, const G u32 *cases) {
  while (j < end && !cursor_ends(*c)) {
    if (p.p[j] == '_') {
      ++j;
      *c = cursor_next(*c);
      continue;
    }
    u32 k = j + (u32)like_escapes(p, j);
    if (cases) {
      character a = str_at(*c->s, c->at), b = str_at(p, k);
      if (folded(cases, a.code) != folded(cases, b.code)) break;
      *c = cursor_at(*c, a.next);
      j = b.next;
    } else {
      if (c->s->p[c->at] != p.p[k]) break;
      *c = cursor_at(*c, c->at + 1);
      j = k + 1;
    }
  }
  return j;
}
#define LIKE_ANY (~0u)
/* A character as its bytes, the first one lowest. */
FN u32 like_bytes(str s, u32 *i, const G u32 *cases) {
  character c = str_at(s, *i);
  *i = c.next;
  u32 code = cases ? folded(cases, c.code) : c.code;
  if (code < 0x80) return code;
  u32 last = 0x80 | (code & 0x3f), third = 0x80 | (code >> 6 & 0x3f), second = 0x80 | (code >> 12 & 0x3f);
  if (code < 0x800) return last << 8 | 0xc0 | code >> 6;
  if (code < 0x10000) return last << 16 | third << 8 | 0xe0 | code >> 12;
  return last << 24 | third << 16 | second << 8 | 0xf0 | code >> 18;
}
/* A character of a pattern as its bytes, LIKE_ANY for `_`. */
FN u32 like_element(str p, u32 *j, const G u32 *cases) {
  if (p.p[*j] == '_') {
    ++*j;
    return LIKE_ANY;
  }
  *j += (u32)like_escapes(p, *j);
  return like_bytes(p, j, cases);
}
/* A slice of a segment as a machine (Baeza-Yates and Gonnet, "A new approach to text searching",
   1992). Its elements are literal bytes and `_`; bit `i` of a row belongs to element `i`.
   Rows of `width` words:
   1. the state: whether the text may end with the elements up to `i`,
   2. which elements are `_`,
   3. zeros,
   4. for each byte of the slice in order, which elements it is. */
#define LIKE_WORDS 96
typedef struct {
  u64 words[LIKE_WORDS];
  /* A bit for each byte of the slice. */
  u64 seen[4];
  /* Words of the state beyond `active` are 0. */
  u32 width, active, elements, characters;
} like_machine;
FN u32 like_count(u64 bits) { return POPC32(bits) + POPC32(bits >> 32); }
FN u32 like_row(const like_machine *m, u32 byte) {
  u64 seen = m->seen[byte >> 6], bit = (u64)1 << (byte & 63);
  if (!(seen & bit)) return 2;
  u32 row = 3 + like_count(seen & (bit - 1));
  for (u32 k = 0; k < byte >> 6; ++k) row += like_count(m->seen[k]);
  return row;
}
/* Prepares the longest slice from offset `j` that fits, and returns its end. */
FN u32 like_prepare(like_machine *m, str p, u32 j, u32 end, const G u32 *cases) {
  u32 to = j, rows = 3;
  for (u32 k = 0; k < 4; ++k) m->seen[k] = 0;
  m->elements = m->characters = m->active = 0;
  while (to < end) {
    u32 next = to, more = 0, elements = m->elements, bytes = like_element(p, &next, cases);
    u32 left = bytes == LIKE_ANY ? 0 : bytes;
    do {
      if (bytes != LIKE_ANY) more += like_row(m, left & 0xff) == 2;
      ++elements;
    } while (left >>= 8);
    if ((elements + 63) / 64 * (rows + more) > LIKE_WORDS) break;
    if (bytes != LIKE_ANY) {
      left = bytes;
      do m->seen[(left & 0xff) >> 6] |= (u64)1 << (left & 63); while (left >>= 8);
    }
    rows += more;
    m->elements = elements;
    ++m->characters;
    to = next;
  }
  m->width = (m->elements + 63) / 64;
  for (u32 k = 0; k < m->width * rows; ++k) m->words[k] = 0;
  for (u32 i = 0; j < to;) {
    u32 bytes = like_element(p, &j, cases), left = bytes == LIKE_ANY ? 0 : bytes;
    do {
      u32 row = bytes == LIKE_ANY ? 1 : like_row(m, left & 0xff);
      m->words[row * m->width + i / 64] |= (u64)1 << (i % 64);
      ++i;
    } while (left >>= 8);
  }
  return to;
}
/* Reads a byte of a character; `start` is 1 where the slice may begin. */
FN void like_step(like_machine *m, u32 byte, i32 first, u64 start) {
  const u64 *row = m->words + like_row(m, byte) * m->width, *any = m->words + m->width;
  u32 k = 0;
  ROLLED for (; k < m->active; ++k) {
    u64 old = m->words[k], moved = old << 1 | start;
    start = old >> 63;
    /* The later bytes of a character stay in `_`. */
    m->words[k] = first ? moved & (row[k] | any[k]) : (moved & row[k]) | (old & any[k]);
  }
  if (start && k < m->width) {
    m->words[k] = first ? row[k] | any[k] : row[k];
    m->words[k++] &= 1;
  }
  while (k > 0 && m->words[k - 1] == 0) --k;
  m->active = k;
}
/* Finds a segment from `c` on, and moves `c` behind it. A segment of one slice is searched at all
   characters at once. A longer one is searched at LIKE_STARTS characters, slice by slice: the bits
   of `starts` are those at which the slices before match. Time is that of comparing every byte with
   every element, divided by about 64. */
#define LIKE_STARTS 1024
FN i32 like_find_bits(cursor *c, str p, u32 j, u32 end, const G u32 *cases) {
  like_machine m;
  u64 starts[LIKE_STARTS / 64];
  cursor block = *c;
  while (!cursor_ends(block)) {
    cursor slice = block;
    for (u32 at = j, found = 1; at < end && found;) {
      i32 is_first = at == j;
      at = like_prepare(&m, p, at, end, cases);
      i32 is_last = at == end, is_whole = is_first && is_last;
      cursor d = slice;
      found = 0;
      ROLLED for (u32 i = 0; is_whole || i <= LIKE_STARTS - 1 + m.characters; ++i) {
        u32 last = m.elements - 1;
        u64 matches = last / 64 < m.active ? m.words[last / 64] >> (last % 64) & 1 : 0;
        if (matches && is_last) {
          *c = d;
          return 1;
        }
        u64 start = is_whole || (i < LIKE_STARTS && (is_first || (starts[i / 64] >> (i % 64) & 1)));
        if (!is_whole && i >= m.characters) {
          u32 from = i - m.characters;
          found |= (u32)matches;
          starts[from / 64] = (starts[from / 64] & ~((u64)1 << (from % 64))) | matches << (from % 64);
        }
        if (i == m.characters) slice = d;
        if (is_first && i == LIKE_STARTS) block = d;
        if (cursor_ends(d)) {
          /* Fewer characters are left than in the slice. */
          if (is_whole || i < m.characters) return 0;
          m.active = 0;
          if (is_first) block = d;
          continue;
        }
        u32 next = d.at, bytes = like_bytes(*d.s, &next, cases);
        like_step(&m, bytes & 0xff, 1, start);
        while (bytes >>= 8) like_step(&m, bytes & 0xff, 0, 0);
        d = cursor_at(d, next);
      }
    }
  }
  return 0;
}
/* Whether all bytes are literal ASCII. */
FN i32 like_is_ascii(str s) {
  for (u32 i = 0; i < s.len; ++i)
    if (s.p[i] >= 0x80) return 0;
  return 1;
}
/* As like_find, in linear time for literal segments. */
COLD_FN i32 like_find_far(cursor *c, str p, u32 j, u32 end, const G u32 *cases) {
  str literal = str_make(p.p + j, end - j);
  i32 reads_bytes = like_plain(p, j) == end - j;
  u64 len = 0;
  for (const str *s = c->s; s != c->end; ++s) {
    len += s->len;
    if (cases && reads_bytes) reads_bytes = like_is_ascii(literal) && like_is_ascii(*s);
  }
  if (!reads_bytes) return like_find_bits(c, p, j, end, cases);
  u64 at = two_way(c->s, len, literal, c->at, cases ? IN_PARTS | ANY_CASE : IN_PARTS);
  if (at == len) return 0;
  for (at += literal.len; c->s != c->end && at >= c->s->len; ++c->s) at -= c->s->len;
  c->at = (u32)at;
  return 1;
}
/* Skips ASCII characters that differ from the first one of a segment. */
FN cursor like_skip(cursor c, str p, u32 j, const G u32 *cases) {
  j += (u32)like_escapes(p, j);
  u32 first = folded(cases, str_at(p, j).code), at = c.at;
  while (at < c.s->len && c.s->p[at] < 0x80 && folded(cases, c.s->p[at]) != first) ++at;
  return cursor_at(c, at);
}
/* Finds a segment from `c` on, and moves `c` behind it. After much work in vain the search goes on in
   linear time. */
FN i32 like_find(cursor *c, str p, u32 j, u32 end, const G u32 *cases, i32 is_one) {
  cursor from = *c;
  for (; j < end && p.p[j] == '_'; ++j) {
    if (cursor_ends(from)) return 0;
    from = cursor_next(from);
  }
  u32 plain = is_one && !cases ? like_plain(p, j) : 0;
  u64 work = 0;
  for (u32 starts = 0; j < end; ++starts) {
    if (cursor_ends(from)) return 0;
    if (plain) {
      u32 at = str_find(*from.s, str_make(p.p + j, plain), from.at);
      if (at == NOT_FOUND) return 0;
      starts += at - from.at;
      from.at = at;
    } else if (cases) {
      u32 at = from.at;
      from = like_skip(from, p, j, cases);
      if (cursor_ends(from)) return 0;
      starts += from.at - at;
    }
    cursor to = cursor_at(from, from.at + plain);
    u32 k = like_match(&to, p, j + plain, end, cases);
    if (k == end) {
      from = to;
      break;
    }
    /* Later starts have fewer characters. */
    if (cursor_ends(to)) return 0;
    from = cursor_next(from);
    work += k - j;
    if (find_is_slow(work, starts)) {
      cursor far = from;
      i32 found = like_find_far(&far, p, j, end, cases);
      *c = far;
      return found;
    }
  }
  *c = from;
  return 1;
}
/* Whether a text matches a pattern. Each segment takes the first place behind the one before; the
   first segment is at the start, the last at the end. */
FN i32 like_matches(const str *s, u32 n, str p, const G u32 *cases) {
  cursor c = cursor_first(s, n);
  u32 end = like_segment(p, 0);
  if (like_match(&c, p, 0, end, cases) != end) return 0;
  while (end < p.len) {
    u32 j = end + 1;
    end = like_segment(p, j);
    if (end < p.len) {
      if (!like_find(&c, p, j, end, cases, n == 1)) return 0;
      continue;
    }
    u32 characters = 0;
    for (u32 k = j; k < end; ++characters) k = str_next(p, k + (u32)like_escapes(p, k));
    c = cursor_last(c, characters);
    if (like_match(&c, p, j, end, cases) != end) return 0;
  }
  return cursor_ends(c);
}
