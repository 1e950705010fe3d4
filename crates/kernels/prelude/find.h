/* Substring search. Offsets are in bytes; NOT_FOUND without a match. */
#define NOT_FOUND (~0u)
FN i32 str_starts(str s, str p) {
  if (s.len < p.len) return 0;
  return str_eq(str_make(s.p, p.len), p);
}
FN i32 str_ends(str s, str p) {
  if (s.len < p.len) return 0;
  return str_eq(str_make(s.p + (s.len - p.len), p.len), p);
}
/* How `text_byte` reads: the parts of a concatenation; from the last byte to the first; ASCII
   letters in one case. */
#define IN_PARTS 1
#define BACKWARD 2
#define ANY_CASE 4
FN u32 byte_of(str s, u32 i, u32 how) {
  u32 c = s.p[how & BACKWARD ? s.len - 1 - i : i];
  return (how & ANY_CASE) && c >= 'a' && c <= 'z' ? c - 32 : c;
}
FN u32 text_byte(const str *s, u64 i, u32 how) {
  if (how & IN_PARTS)
    for (; i >= s->len; ++s) i -= s->len;
  return byte_of(*s, (u32)i, how);
}
/* The greatest suffix of `p` by the order of bytes, or by the opposite order: its offset and its
   period. */
typedef struct { u32 at, period; } suffix;
FN suffix greatest_suffix(str p, i32 opposite, u32 how) {
  suffix best;
  best.at = 0;
  best.period = 1;
  u32 j = 0, k = 1;
  ROLLED while (j + k < p.len) {
    u32 a = byte_of(p, j + k, how), b = byte_of(p, best.at + k - 1, how);
    if (a == b) {
      if (k != best.period) { ++k; continue; }
      j += k;
    } else if (opposite ? a > b : a < b) {
      j += k;
      best.period = j + 1 - best.at;
    } else {
      best.at = ++j;
      best.period = 1;
    }
    k = 1;
  }
  return best;
}
/* The first offset from `i` of `p` in a text of `len` bytes; `len` without a match. Linear time:
   Crochemore and Perrin, "Two-way string-matching", 1991. */
FN u64 two_way(const str *s, u64 len, str p, u64 i, u32 how) {
  suffix up = greatest_suffix(p, 0, how), down = greatest_suffix(p, 1, how);
  u32 cut = up.at > down.at ? up.at : down.at, period = up.at > down.at ? up.period : down.period;
  /* Offsets of `p` below `known` are known to match. */
  u32 known = 0, k = 0;
  while (k < cut && byte_of(p, k, how) == byte_of(p, k + period, how)) ++k;
  i32 periodic = k == cut;
  if (!periodic) period = (cut > p.len - cut ? cut : p.len - cut) + 1;
  ROLLED while (i + p.len <= len) {
    k = cut > known ? cut : known;
    while (k < p.len && byte_of(p, k, how) == text_byte(s, i + k, how)) ++k;
    if (k < p.len) {
      i += k - cut + 1;
      known = 0;
      continue;
    }
    k = cut;
    while (k > known && byte_of(p, k - 1, how) == text_byte(s, i + k - 1, how)) --k;
    if (k <= known) return i;
    i += period;
    known = periodic ? p.len - period : 0;
  }
  return len;
}
COLD_FN u32 str_find_far(str s, str p, u32 i) {
  u64 at = two_way(&s, s.len, p, i, 0);
  return at < s.len ? (u32)at : NOT_FOUND;
}
/* As str_find_back. */
COLD_FN u32 str_find_back_far(str s, str p, u32 end) {
  str before = str_make(s.p, end);
  u64 at = two_way(&before, end, p, 0, BACKWARD);
  return at < end ? end - p.len - (u32)at : NOT_FOUND;
}
/* Whether a search goes on in linear time, after it compared `work` bytes in vain at `starts`
   offsets. */
FN i32 find_is_slow(u64 work, u32 starts) { return work > (u64)starts + 256; }
/* The number of equal bytes of `p` and of `s` at offset `i`; i + p.len <= s.len. */
FN u32 str_common(str s, u32 i, str p) {
  u32 j = 0;
  while (j < p.len && s.p[i + j] == p.p[j]) ++j;
  return j;
}
/* Bytes to search for, as of MATCHES_16: `a`, `b` `next` bytes behind it, and `c` `distance` bytes
   behind it; `next` is at most `distance`. The bits tell which of the PROBED offsets before `end`
   have them; `end` is 0 at first. */
#if BYTE_WORDS
#define PROBED 8
#else
#define PROBED 16
#endif
typedef struct { u32 a, b, c, next, distance, end, bits; } byte_probe;
FN byte_probe byte_probe_make(u32 a, u32 b, u32 c, u32 next, u32 distance) {
  byte_probe x;
  x.a = a;
  x.b = b;
  x.c = c;
  x.next = next;
  x.distance = distance;
  x.end = x.bits = 0;
  return x;
}
/* The first offset from `*i` that has the bytes, of the last probed offsets. Without one `*i`
   moves behind them. */
FN i32 probed_before(u32 *i, byte_probe *x) {
  if (*i >= x->end) return 0;
  if (x->end - *i > PROBED) *i = x->end - PROBED;
  u64 bits = x->bits >> (PROBED - (x->end - *i));
  *i = bits ? *i + 63 - CLZ64(bits & -bits) : x->end;
  return bits != 0;
}
/* str_probe: the first offset from `i` that may have the bytes, the string's length without one. A
   later call for the same string takes a later `i`. */
#if BYTE_WORDS
/* The highest bit of each byte of `word` that is `a`. */
FN u64 word_matches(u64 word, u32 a) {
  u64 ones = 0x0101010101010101UL, highs = ones << 7, x = (word | (a >> 8) * ones) ^ (a & 255) * ones;
  return ~(((x & ~highs) + ~highs) | x) & highs;
}
/* The eight bytes `distance` bytes behind word `k`. Words up to `last` are those of a string. */
FN u64 word_behind(const G u64 *words, u32 k, u32 last, u64 word, u64 after, u32 distance) {
  u32 shift = 8 * (distance & 7);
  if (distance >= 8) {
    k += distance >> 3;
    word = k <= last ? words[k] : 0;
    after = shift && k < last ? words[k + 1] : 0;
  }
  return shift ? word >> shift | after << (64 - shift) : word;
}
/* Aligned words may be loaded whole, also at the ends of a string. */
FN u32 str_probe(str s, u32 i, byte_probe *x) {
  if (s.len <= x->distance) return s.len;
  /* Offsets behind the last word must not overflow. */
  if (s.len > ~15u) return i;
  u32 end = s.len - x->distance;
  if (probed_before(&i, x)) return i < end ? i : s.len;
  if (i >= end) return s.len;
  u32 lead = (u32)(u64)s.p & 7, last = (lead + s.len - 1) >> 3, k = (lead + i) >> 3;
  const G u64 *words = (const G u64 *)(s.p - lead);
  for (u64 word = words[k];; ++k) {
    u64 after = k < last ? words[k + 1] : 0, found = word_matches(word, x->a);
    if (found) found &= word_matches(word_behind(words, k, last, word, after, x->next), x->b);
    if (found) found &= word_matches(word_behind(words, k, last, word, after, x->distance), x->c);
    x->end = 8 * (k + 1) - lead;
    x->bits = HIGH_BITS(found);
    if (probed_before(&i, x)) return i < end ? i : s.len;
    if (i >= end) return s.len;
    word = after;
  }
}
#else
FN u32 str_probe(str s, u32 i, byte_probe *x) {
  if (s.len < 16 + x->distance) return i;
  const G u8 *p = s.p, *q = p + x->next, *r = p + x->distance;
  u32 end = s.len - x->distance;
  if (probed_before(&i, x)) return i;
  for (; i < end; i = x->end) {
    while (end - i >= 64 && !ANY_MATCH_64(p + i, x->a, q + i, x->b, r + i, x->c)) i += 64;
    if (i == end) break;
    /* The last offsets again, if fewer than 16 are left. */
    x->end = end - i < 16 ? end : i + 16;
    u32 at = x->end - 16;
    MATCHES_16(x->bits, p + at, x->a, q + at, x->b, r + at, x->c);
    if (!x->bits) continue;
    u64 bits = x->bits >> (i - at);
    if (bits) return i + 63 - CLZ64(bits & -bits);
  }
  return s.len;
}
#endif
/* The first offset of `p` from `i`. */
FN u32 str_find(str s, str p, u32 i) {
  if ((u64)i + p.len > s.len) return NOT_FOUND;
  if (p.len == 0) return i;
  u32 end = s.len - p.len + 1, from = i, other = p.len - 1;
  u64 work = 0;
  /* Bytes of `p`, different ones if there are any, rule out most offsets. */
  while (other > 0 && p.p[other] == p.p[0]) --other;
  if (other == 0) other = p.len - 1;
  /* The next byte would hide texts in which two-way search skips most of a long `p`. */
  u32 next = other > 0 && p.len < 128;
  byte_probe x = byte_probe_make(p.p[0], p.p[next], p.p[other], next, other);
  str firsts = str_make(s.p, end + other);
  for (; i < end; ++i) {
    i = str_probe(firsts, i, &x);
    if (i >= end) break;
    u32 common = str_common(s, i, p);
    if (common == p.len) return i;
    /* An offset that the bytes do not rule out costs as much as some bytes of two-way search. */
    work += common + 8;
    if (find_is_slow(work, i - from)) return str_find_far(s, p, i);
  }
  return NOT_FOUND;
}
/* The last offset at which `p` ends at or before `end`. */
FN u32 str_find_back(str s, str p, u32 end) {
  if (end < p.len) return NOT_FOUND;
  u64 work = 0;
  for (u32 i = end - p.len;; --i) {
    u32 common = str_common(s, i, p);
    if (common == p.len) return i;
    if (i == 0) return NOT_FOUND;
    work += common;
    if (find_is_slow(work, end - p.len - i)) return str_find_back_far(s, p, i + p.len - 1);
  }
}
FN i32 str_contains(str s, str p) { return str_find(s, p, 0) != NOT_FOUND; }
