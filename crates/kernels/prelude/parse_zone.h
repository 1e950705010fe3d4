/* parse_datetime's answer for text that ends in a zone's name: 1 for one of UTC's names, 3 for the name
   of the zone that local times are in, 2 for another zone's, which only the host can compute with. */
COLD_FN i32 parse_zone(i32 answer, str s, str own, const G u8 *heap, const G u32 *utc, u32 utcs, const G u32 *named, u32 count) {
  if (answer < 4) return answer;
  u32 len = (u32)answer >> 2;
  str zone = str_from(s, s.len - len);
  if (str_eq(zone, own)) return 3;
  if (list_has_str(utc, heap, utcs, zone)) return 1;
  return list_has_str(named, heap, count, zone) ? 2 : 0;
}
