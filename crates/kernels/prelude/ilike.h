/* SQL's ILIKE: as str_like, ignoring case by the case table. */
COLD_FN i32 str_ilike(str s, str p, u32 least, const G u32 *cases) { return like_matches(&s, 1, p, least, cases); }
