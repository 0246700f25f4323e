//! The allocator of the programs, and giving memory back to the system.

/// The allocator for a program that moves data through connections, to be its `#[global_allocator]`.
///
/// glibc's gives the memory of a connection's buffers back to the system and gets it again, page by page and cleared, for every few
/// MiB that go through; this one keeps it for a moment. What a session leaves goes back with [`trim_memory`].
pub use mimalloc::MiMalloc as ProgramAllocator;

/// Returns memory that has been freed, but that the allocator keeps for later, to the system. Takes some milliseconds; worth it
/// where much was freed and nobody knows when it will be needed again, such as at the end of a client's session.
pub fn trim_memory() {
    // SAFETY: mi_collect may be called at any time from any thread, whether or not the program allocates with mimalloc; it gives back
    // what this thread and threads that have ended have freed.
    unsafe { libmimalloc_sys::mi_collect(true) };
    // Libraries in C, and programs with the system's allocator.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim may be called at any time from any thread; it only touches the allocator's own free lists.
    unsafe {
        libc::malloc_trim(0);
    }
}
