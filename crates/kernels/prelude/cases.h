/* Code points of UTF-8 strings, and the case table of build/cases.rs. */
typedef struct { u32 code, next; } character;
/* The code point of the character at byte `i`, and the offset of the next character. */
FN character str_at(str s, u32 i) {
  character c;
  u32 lead = s.p[i];
  c.next = i + (lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4);
  c.next = c.next < s.len ? c.next : s.len;
  c.code = lead < 0x80 ? lead : lead < 0xe0 ? lead & 0x1f : lead < 0xf0 ? lead & 0x0f : lead & 0x07;
  for (u32 j = i + 1; j < c.next; ++j) c.code = c.code << 6 | (s.p[j] & 0x3f);
  return c;
}
#define UPPER 0
#define LOWER 1
#define FOLDED 2
#define PROPERTIES 3
#define CASED 1
#define IGNORED 2
#define ALPHANUMERIC 4
/* The table's entry of kind UPPER, LOWER, FOLDED or PROPERTIES for a code point. */
FN u32 case_of(const G u32 *cases, u32 kind, u32 code) {
  u32 block = cases[kind * 0x1100 + (code >> 8)];
  return block ? cases[block + (code & 0xff)] : code;
}
/* The representative of the code points that differ in case only. */
FN u32 folded(const G u32 *cases, u32 code) {
  if (code < 0x80) return code >= 'a' && code <= 'z' ? code - 32 : code;
  return case_of(cases, FOLDED, code);
}
