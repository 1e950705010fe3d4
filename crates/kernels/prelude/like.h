/* SQL's LIKE: `%` matches any string, `_` a character, and a backslash escapes the next character. */
COLD_FN i32 str_like(str s, str p) { return like_matches(&s, 1, p, 0); }
