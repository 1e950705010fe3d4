/* Search of the segments of a LIKE pattern, which stand between its `%`, in parts of a
   concatenation. With a case table it ignores case. */
/* A character of a text: in part `s`, at byte `at`. At the end, `s` is `end`. */
typedef struct { const str *s, *end; u32 at; } cursor;
FN i32 cursor_ends(cursor c) { return c.s == c.end; }
/* The same position, never at the end of a part. */
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
    u32 a = c->s->p[c->at], b = p.p[k];
    if (cases && (a >= 0x80 || b >= 0x80)) {
      character x = str_at(*c->s, c->at), y = str_at(p, k);
      if (folded(cases, x.code) != folded(cases, y.code)) break;
      *c = cursor_at(*c, x.next);
      j = y.next;
    } else {
      if (cases ? folded(cases, a) != folded(cases, b) : a != b) break;
      *c = cursor_at(*c, c->at + 1);
      j = k + 1;
    }
  }
  return j;
}
#define LIKE_ANY (~0u)
/* A character as its bytes, the first one lowest. */
FN u32 like_bytes(str s, u32 *i, const G u32 *cases) {
  if (s.p[*i] < 0x80) {
    u32 c = s.p[(*i)++];
    return cases ? folded(cases, c) : c;
  }
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
   0. the state: whether the text read so far ends with the elements up to `i`; the first word is in
      `like_state`,
   1. which elements are `_`,
   2. zeros,
   3. from here on, for each byte of the slice, which elements it is. */
#define LIKE_WORDS 96
typedef struct {
  u64 words[LIKE_WORDS];
  /* The row of each byte; 2 of those that are not in the slice. */
  u8 rows[256];
  u32 width, elements, characters;
} like_machine;
/* The first word of the state; the words from `active` on are 0. */
typedef struct { u64 first; u32 active; } like_state;
/* Prepares the longest slice from offset `j` that fits, and returns its end. */
FN u32 like_prepare(like_machine *m, str p, u32 j, u32 end, const G u32 *cases) {
  u32 to = j, rows = 3;
  for (u32 k = 0; k < 256; ++k) m->rows[k] = 2;
  m->elements = m->characters = 0;
  while (to < end) {
    u32 next = to, more = 0, elements = m->elements, bytes = like_element(p, &next, cases);
    u32 left = bytes == LIKE_ANY ? 0 : bytes;
    do {
      if (bytes != LIKE_ANY) more += m->rows[left & 0xff] == 2;
      ++elements;
    } while (left >>= 8);
    if ((elements + 63) / 64 * (rows + more) > LIKE_WORDS) break;
    if (more) {
      left = bytes;
      do {
        if (m->rows[left & 0xff] == 2) m->rows[left & 0xff] = (u8)rows++;
      } while (left >>= 8);
    }
    m->elements = elements;
    ++m->characters;
    to = next;
  }
  m->width = (m->elements + 63) / 64;
  for (u32 k = 0; k < m->width * rows; ++k) m->words[k] = 0;
  for (u32 i = 0; j < to;) {
    u32 bytes = like_element(p, &j, cases), left = bytes == LIKE_ANY ? 0 : bytes;
    do {
      u32 row = bytes == LIKE_ANY ? 1 : m->rows[left & 0xff];
      m->words[row * m->width + i / 64] |= (u64)1 << (i % 64);
      ++i;
    } while (left >>= 8);
  }
  return to;
}
FN like_state like_begin(like_machine *m) {
  like_state none;
  for (u32 k = 0; k < m->width; ++k) m->words[k] = 0;
  none.first = 0;
  none.active = 1;
  return none;
}
/* The state after a byte. The first byte of a character may begin the slice, if `start` is 1; the
   later ones stay in `_`. */
FN like_state like_step(like_machine *m, like_state state, u32 byte, i32 is_first, u64 start) {
  const u64 *row = m->words + m->rows[byte] * m->width, *any = m->words + m->width;
  u64 old = state.first, moved = old << 1 | start, carry = old >> 63;
  state.first = is_first ? moved & (row[0] | any[0]) : (moved & row[0]) | (old & any[0]);
  if (state.active == 1 && !carry) return state;
  u32 k = 1;
  ROLLED for (; k < state.active; ++k) {
    old = m->words[k];
    moved = old << 1 | carry;
    carry = old >> 63;
    m->words[k] = is_first ? moved & (row[k] | any[k]) : (moved & row[k]) | (old & any[k]);
  }
  if (carry && k < m->width) {
    m->words[k] = (is_first ? row[k] | any[k] : row[k]) & 1;
    ++k;
  }
  while (k > 1 && m->words[k - 1] == 0) --k;
  state.active = k;
  return state;
}
/* The state after the character at `i`, which moves on. */
FN like_state like_read(like_machine *m, like_state state, str s, u32 *i, u64 start, const G u32 *cases) {
  u32 bytes = like_bytes(s, i, cases);
  state = like_step(m, state, bytes & 0xff, 1, start);
  while (bytes >>= 8) state = like_step(m, state, bytes & 0xff, 0, 0);
  return state;
}
/* Whether the text read so far ends with the slice. */
FN u64 like_stands(const like_machine *m, like_state state) {
  u32 last = m->elements - 1, k = last / 64;
  if (k >= state.active) return 0;
  return (k == 0 ? state.first : m->words[k]) >> (last % 64) & 1;
}
/* As like_find, for segments longer than a slice: at LIKE_STARTS characters at once, slice by
   slice. The bits of `starts` are those at which the slices before match. */
#define LIKE_STARTS 1024
FN i32 like_find_sliced(like_machine *m, cursor *c, str p, u32 j, u32 end, const G u32 *cases) {
  u64 starts[LIKE_STARTS / 64];
  cursor block = *c;
  while (!cursor_ends(block)) {
    cursor slice = block;
    for (u32 at = j, found = 1; at < end && found;) {
      i32 is_first = at == j;
      at = like_prepare(m, p, at, end, cases);
      cursor d = slice;
      like_state state = like_begin(m);
      found = 0;
      ROLLED for (u32 i = 0; i < LIKE_STARTS + m->characters; ++i) {
        u64 stands = like_stands(m, state), start = 0;
        if (stands && at == end) {
          *c = d;
          return 1;
        }
        if (i < LIKE_STARTS) start = is_first ? 1 : starts[i / 64] >> (i % 64) & 1;
        if (i >= m->characters) {
          u32 from = i - m->characters, bit = from % 64;
          starts[from / 64] = (starts[from / 64] & ~((u64)1 << bit)) | stands << bit;
          found |= (u32)stands;
        }
        if (i == m->characters) slice = d;
        if (is_first && i == LIKE_STARTS) block = d;
        if (!cursor_ends(d)) {
          u32 next = d.at;
          state = like_read(m, state, *d.s, &next, start, cases);
          d = cursor_at(d, next);
          continue;
        }
        /* Fewer characters are left than in the slice. */
        if (i < m->characters) return 0;
        state = like_begin(m);
        if (is_first) block = d;
      }
    }
  }
  return 0;
}
/* As like_find. The time is that of comparing every byte with every element, divided by about 64.
   */
FN i32 like_find_bits(cursor *c, str p, u32 j, u32 end, const G u32 *cases) {
  like_machine m;
  if (like_prepare(&m, p, j, end, cases) < end) return like_find_sliced(&m, c, p, j, end, cases);
  like_state state = like_begin(&m);
  for (cursor d = *c; !cursor_ends(d); d = cursor_at(d, d.s->len)) {
    str s = *d.s;
    for (u32 i = d.at; i < s.len;) {
      u32 byte = s.p[i];
      if (cases && byte >= 0x80) {
        state = like_read(&m, state, s, &i, 1, cases);
      } else {
        i32 first = is_first((u8)byte);
        state = like_step(&m, state, cases ? folded(cases, byte) : byte, first, (u64)first);
        ++i;
      }
      if (!like_stands(&m, state)) continue;
      while (i < s.len && !is_first(s.p[i])) ++i;
      *c = cursor_at(d, i);
      return 1;
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
  i32 is_literal = like_plain(p, j) == end - j;
  u64 len = 0, at;
  for (const str *s = c->s; s != c->end; ++s) {
    len += s->len;
    if (cases && is_literal) is_literal = like_is_ascii(literal) && like_is_ascii(*s);
  }
  if (!is_literal) return like_find_bits(c, p, j, end, cases);
  if (cases) at = two_way(c->s, len, literal, c->at, ANY_CASE);
  else at = two_way(c->s, len, literal, c->at, IN_PARTS);
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
/* Finds a segment from `c` on, and moves `c` behind it. After much work in vain the search goes on
   in linear time. */
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
    work += k - j + 2;
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
/* Whether a text matches a pattern of at least `least` characters. Each segment takes the first
   position behind the one before; the first segment is at the start, the last at the end. */
FN i32 like_matches(const str *s, u32 n, str p, u32 least, const G u32 *cases) {
  u64 len = 0;
  for (u32 i = 0; i < n; ++i) len += s[i].len;
  if (len < least) return 0;
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
