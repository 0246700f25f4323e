// Rows of a table by their numbers, as SET_ROWS writes them.

shared uint is_wrong;

bool all_are_rows(Tensor ids, uint rows) {
    is_wrong = 0;
    barrier();
    uint count = ids.ne.x * ids.ne.y * ids.ne.z;
    for (uint i = gl_LocalInvocationID.x; i < count; i += LANES) {
        uint i1 = i / ids.ne.x;
        uvec2 at = plus(row(ids, i1 % ids.ne.y, i1 / ids.ne.y, 0), i % ids.ne.x, ids.nb.x);
        if (uint(read_i32(at)) >= rows) {
            wrong(ROW, read_i32(at), rows);
            is_wrong = 1;
        }
    }
    barrier();
    return is_wrong == 0;
}
