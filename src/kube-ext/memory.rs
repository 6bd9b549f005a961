//! How memory is given back that lists of thousands of objects needed for a moment.
//!
//! glibc keeps a heap for each thread and lets none of it go that lies below something in use: after each break of its watches
//! an operator held more (36 MiB with 300 nodes and 1,000 pods, then 47, 53, 58, 60 after four deaths of kube-apiserver). With
//! one heap, whose end goes back from 128 KiB on, and large blocks apart from it, it stays level (35, then 43 to 46). Programs that allocate
//! otherwise were tried: mimalloc holds as level, but half as much again.

/// The variable that glibc reads at the start of a program.
pub const VARIABLE: &str = "GLIBC_TUNABLES";
/// One heap; what is free at its end, and blocks of their own, from 128 KiB on.
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
