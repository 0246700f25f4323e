//! Giving memory back to the system.

/// Returns memory that has been freed, but that the allocator keeps for later, to the system. Takes some milliseconds; worth it
/// where much was freed and nobody knows when it will be needed again, such as at the end of a client's session.
pub fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim may be called at any time from any thread; it only touches the allocator's own free lists.
    unsafe {
        libc::malloc_trim(0);
    }
}
