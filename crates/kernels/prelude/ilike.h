/* SQL's ILIKE: as str_like, ignoring case by the case table. */
COLD_FN i32 str_ilike(str s, str p, const G u32 *cases) { return like_matches(&s, 1, p, cases); }
