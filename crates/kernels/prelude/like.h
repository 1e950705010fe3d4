/* SQL's LIKE: `%` matches any string, `_` a character, and a backslash escapes the next character.
   The pattern takes at least `least` characters. */
COLD_FN i32 str_like(str s, str p, u32 least) { return like_matches(&s, 1, p, least, 0); }
