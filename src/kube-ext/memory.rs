//! Settings of glibc's malloc that give back the memory of large lists.
//!
//! glibc keeps one heap per thread and releases no free memory below a block in use: after each break of its
//! watches an operator held more (36 MiB with 300 nodes and 1,000 pods, then 47, 53, 58, 60 after four deaths
//! of kube-apiserver). With one heap, trimmed from 128 KiB on, and large blocks allocated apart from it,
//! memory stays level (35, then 43 to 46). Another allocator was tried: mimalloc stays as level, but holds
//! half as much again.

/// Environment variable that glibc reads at program start.
pub const VARIABLE: &str = "GLIBC_TUNABLES";
/// One heap, trimmed at its end from 128 KiB on; blocks from 128 KiB on are allocated outside the heap.
pub const VALUE: &str =
    "glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=131072:glibc.malloc.mmap_threshold=131072";

#[cfg(test)]
mod tests {
    #[test]
    fn both_images_say_the_same() {
        let line = format!("ENV {}={}\n", super::VARIABLE, super::VALUE);
        assert!(include_str!("../../Dockerfile").contains(&line));
    }
}
