use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{
    MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap,
};

use super::*;

const PAGE: usize = 4096;

/// Memory that is unmapped with the test.
struct Pages(NonNull<u8>, usize);

impl Pages {
    fn new(count: usize, prot: ProtFlags, flags: MapFlags) -> Self {
        let len = NonZeroUsize::new(count * PAGE).unwrap();
        // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
        let base = unsafe { mmap_anonymous(None, len, prot, flags) }.unwrap();
        Self(base.cast(), len.get())
    }

    fn private(count: usize) -> Self {
        Self::new(count, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)
    }

    fn fill(&self) {
        for i in 0..self.1 {
            // SAFETY: in bounds, and no other thread has it.
            unsafe { self.ptr(i).write(byte(i)) };
        }
    }

    fn ptr(&self, offset: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(offset)
    }

    fn at(&self, offset: usize) -> u64 {
        (self.0.addr().get() + offset) as u64
    }

    /// The error when it is to be made shareable.
    fn refusal(&self) -> String {
        let files = Files::default();
        // SAFETY: the test owns it, no other thread has it, and it stays mapped.
        let converted = unsafe { files.remap_shared(self.0.as_ptr(), self.1) };
        let why = converted.expect_err("it is refused").to_string();
        assert_eq!(files.place(self.at(0), 1), None, "{why}");
        why
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the test owns it, and is over.
        unsafe { munmap(self.0.cast(), self.1) }.unwrap();
    }
}

fn byte(i: usize) -> u8 {
    (i * 7 + i / PAGE) as u8
}

#[test]
fn bytes_stay_where_they_are_and_edges_stay_private() {
    let pages = Pages::private(40);
    pages.fill();
    let files = Files::default();
    // SAFETY: the test owns it, no other thread has it, and it stays mapped.
    let entry =
        unsafe { files.remap_shared(pages.ptr(100), 39 * PAGE) }.expect("nothing forbids it");
    // SAFETY: in bounds, and no thread writes.
    let all = unsafe { std::slice::from_raw_parts(pages.0.as_ptr(), pages.1) };
    assert!(all.iter().enumerate().all(|(i, got)| *got == byte(i)), "the same bytes");
    let inside = files.place(pages.at(PAGE), 38 * PAGE).expect("whole pages are in the file");
    assert_eq!(inside.offset, 0);
    assert_eq!(files.place(pages.at(PAGE - 1), 2), None, "the page before is not all of it");
    assert_eq!(files.place(pages.at(39 * PAGE - 1), 2), None, "nor the one behind");

    // SAFETY: in bounds, and no other thread has it.
    unsafe { pages.ptr(5 * PAGE).write(0xee) };
    let mut seen = [0];
    let file = File::open(format!("/proc/self/fd/{}", inside.fd)).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 4 * PAGE as u64).unwrap();
    assert_eq!(seen, [0xee]);
    assert_eq!(file.metadata().unwrap().len(), 38 * PAGE as u64);

    drop(entry);
    assert_eq!(files.place(pages.at(PAGE), 1), None);
    // SAFETY: in bounds, and no thread writes.
    assert_eq!(unsafe { pages.ptr(5 * PAGE).read() }, 0xee, "it outlives its registration");
}

#[test]
fn whoever_writes_late_writes_to_the_file_alone() {
    let (pages, files) = (Pages::private(20), Files::default());
    pages.fill();
    // SAFETY: the test owns it, no other thread has it, and it stays mapped.
    let entry =
        unsafe { files.remap_shared(pages.0.as_ptr(), pages.1) }.expect("nothing forbids it");
    let place = files.place(pages.at(0), pages.1).expect("all of it is in the file");
    let path = format!("/proc/self/fd/{}", place.fd);
    let late = File::options().read(true).write(true).open(path).unwrap();
    let write = |byte| std::os::unix::fs::FileExt::write_all_at(&late, &[byte], 0).unwrap();
    // SAFETY: in bounds, and no other thread writes.
    let first = || unsafe { pages.ptr(0).read_volatile() };
    write(0xaa);
    assert_eq!(first(), 0xaa, "it is one memory");
    files.expect_late_writer();
    drop(entry);
    write(0xbb);
    assert_eq!(first(), 0xaa);
    // SAFETY: in bounds, and no other thread has it.
    assert_eq!(unsafe { pages.ptr(19 * PAGE + 5).read() }, byte(19 * PAGE + 5), "the same bytes");
    // SAFETY: the test owns it, no other thread has it, and it stays mapped.
    let again = unsafe { files.remap_shared(pages.0.as_ptr(), pages.1) };
    assert!(again.is_ok(), "it is private again");
}

#[test]
fn a_second_time_there_is_nothing_to_convert() {
    let (pages, files) = (Pages::private(20), Files::default());
    // SAFETY: the test owns it, no other thread has it, and it stays mapped.
    let entry =
        unsafe { files.remap_shared(pages.0.as_ptr(), pages.1) }.expect("nothing forbids it");
    assert!(pages.refusal().contains("shared already"));
    assert!(files.place(pages.at(0), pages.1).is_some(), "the first registration is as it was");
    drop(entry);
}

#[test]
fn what_is_not_simply_private_memory_is_left_alone() {
    let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let shared = Pages::new(20, rw, MapFlags::MAP_SHARED);
    assert!(shared.refusal().contains("shared already"));
    let constant = Pages::new(20, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
    assert!(constant.refusal().contains("read and written"));
    assert!(Pages::private(15).refusal().contains("too short"));

    let locked = Pages::private(20);
    // SAFETY: it is mapped.
    if unsafe { mlock(locked.0.cast(), locked.1) }.is_ok() {
        assert!(locked.refusal().contains("locked"));
    }
    let kept_back = Pages::private(20);
    // SAFETY: this process does not fork.
    unsafe { madvise(kept_back.0.cast(), kept_back.1, MmapAdvise::MADV_DONTFORK) }.unwrap();
    assert!(kept_back.refusal().contains("fork"));

    let exe = File::open("/proc/self/exe").unwrap();
    let len = NonZeroUsize::new(20 * PAGE).unwrap();
    // SAFETY: the kernel chooses the address, so the new mapping replaces no other memory.
    let base = unsafe { mmap(None, len, rw, MapFlags::MAP_PRIVATE, &exe, 0) }.unwrap();
    assert!(Pages(base.cast(), len.get()).refusal().contains("from a file"));

    let torn = Pages::private(40);
    let hole = NonNull::new(torn.ptr(20 * PAGE)).unwrap();
    // SAFETY: in bounds, owned by the test, and unmapping what is not mapped does nothing.
    unsafe { munmap(hole.cast(), PAGE) }.unwrap();
    assert!(torn.refusal().contains("not all there"));
}

#[test]
fn what_the_kernel_says_is_understood() {
    let area = |range: &str, rights: &str, rest: &str, page: &str, flags: &str| {
        format!(
            "{range} {rights} 00000000 {rest}\nSize: 4 kB\nKernelPageSize: {page} kB\n\
             VmFlags: {flags} \n"
        )
    };
    let heap = area("10000-90000", "rw-p", "00:00 0    [heap]", "4", "rd wr ac");
    let two = area("100000-180000", "rw-p", "00:00 0", "4", "rd wr mr ac")
        + &area("180000-200000", "rw-p", "00:00 0    [anon:name]", "4", "rd wr");
    let huge = area("400000-800000", "rw-p", "00:00 0", "2048", "rd wr ht");
    let smaps = heap + &two + &huge;
    let pages = |at, len| whole_pages(&smaps, at, len);
    assert_eq!(pages(0x100001, 0x5_0000), Ok(0x101000..0x150000));
    assert_eq!(pages(0x170000, 0x4_0000), Ok(0x170000..0x1b0000), "areas may meet in it");
    assert_eq!(pages(0x1f0000, 0x4_0000), Err("it is not all there"));
    assert_eq!(pages(0x300000, 0x4_0000), Err("it is not all there"));
    assert_eq!(pages(0x10000, 0x4_0000), Err("it is part of the heap"));
    assert_eq!(pages(0x400000, 0x40_0000), Err("it is of huge pages"));
    assert_eq!(pages(usize::MAX, 2), Err("it is not all there"));
    assert_eq!(whole_pages("", 0, 1), Err("it is not all there"));
}
