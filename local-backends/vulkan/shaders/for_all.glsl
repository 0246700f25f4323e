// Numbers of a client that decide to which barriers a workgroup comes. One invocation reads them for all: another queue of the client may write them meanwhile, and
// a card hangs whose invocations do not come to the same barriers.

shared int read_by_one;

int read_for_all(uvec2 at) {
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        read_by_one = read_i32(at);
    }
    barrier();
    return read_by_one;
}
