//! The signal for whoever touches mapped memory that is not in its file any more.
//!
//! What programs of this host share by themselves and have registered is mapped here. It is theirs,
//! and they may make it shorter, by mistake or on purpose. An adapter of hardware would go on to
//! write to the pages that it has, which nobody sees any more. So does this one: a page that is
//! gone is replaced by one of zeros, and whoever touched it goes on. If the page should have been
//! there, because the file is as long as ever but there is no memory left, say, the link finds that
//! out, and what was copied goes another way.
//!
//! The handler comes with the first memory that needs it. Signals for other memory go to whoever
//! had them before. A program that blocks the signal when it opens a device does without: only
//! files that cannot become shorter are mapped. If it does so later, or takes the signal for
//! itself, nothing is watched any more.

use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use feroce_local::{Guard, Watch};
use nix::sys::signal::{SigSet, Signal};

/// Most pieces of memory that are watched.
const MOST: usize = 256;

/// What is watched.
static WATCHED: [Piece; MOST] = [const { Piece::none() }; MOST];

/// Who had the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A piece of memory that is watched.
#[derive(Debug)]
struct Piece {
    /// Where it begins; zero if the place is free.
    at: AtomicUsize,
    len: AtomicUsize,
    /// Something was missing.
    is_torn: AtomicBool,
}

impl Piece {
    /// The place is taken, but nothing is watched yet.
    const TAKEN: usize = 1;

    const fn none() -> Self {
        let is_torn = AtomicBool::new(false);
        Self { at: AtomicUsize::new(0), len: AtomicUsize::new(0), is_torn }
    }

    fn has(&self, address: usize) -> bool {
        let at = self.at.load(Ordering::Acquire);
        at > Self::TAKEN && address.wrapping_sub(at) < self.len.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let [free, taken] = [0, Self::TAKEN];
        self.at.compare_exchange(free, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Takes the signal where memory of others is mapped.
#[derive(Debug)]
pub(crate) struct Sigbus;

impl Guard for Sigbus {
    fn watch(&self, at: u64, len: NonZeroUsize) -> Option<Box<dyn Watch>> {
        let at = usize::try_from(at).ok().filter(|at| *at > Piece::TAKEN)?;
        install().then_some(())?;
        let piece = WATCHED.iter().find(|piece| piece.take())?;
        piece.is_torn.store(false, Ordering::Relaxed);
        piece.len.store(len.get(), Ordering::Relaxed);
        piece.at.store(at, Ordering::Release);
        Some(Box::new(Watched(piece)))
    }
}

/// Ends when it is dropped.
#[derive(Debug)]
struct Watched(&'static Piece);

impl Watch for Watched {
    #[inline]
    fn is_torn(&self) -> bool {
        self.0.is_torn.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.at.store(0, Ordering::Release);
    }
}

/// Whether this thread has blocked the signal: it would end all the same.
pub(crate) fn is_blocked() -> bool {
    SigSet::thread_get_mask().is_ok_and(|blocked| blocked.contains(Signal::SIGBUS))
}

/// Takes the signal, unless that was done.
fn install() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    *TAKEN.get_or_init(|| {
        // SAFETY: `sigaction` is plain data for which all zeros is a valid value.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a signal that there is, and a place for the answer.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
            return false;
        }
        let before = BEFORE.get_or_init(|| before);
        let handler = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        let ours = libc::sigaction { sa_sigaction: handler as usize, sa_flags: flags, ..*before };
        // SAFETY: the handler is of the kind that the flags say, stays as long as the process does,
        // and calls nothing that a handler must not.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) == 0 }
    })
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives what belongs to the signal.
    let about = unsafe { &*info };
    // SAFETY: this signal has an address; if somebody sent it, the code says so.
    let (code, address) = (about.si_code, unsafe { about.si_addr() }.addr());
    let watched = WATCHED.iter().find(|piece| piece.has(address));
    if let Some(piece) = watched.filter(|_| code == libc::BUS_ADRERR) {
        // Before anybody can see anything else there.
        piece.is_torn.store(true, Ordering::Release);
        // SAFETY: the memory is ours, and what was there is gone already.
        if unsafe { replace(address) } {
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // Whoever touched the memory does so again when this returns, and ends.
            // SAFETY: plain data, for which zeros mean what is done by default.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: a signal that there is.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
            if code <= 0 {
                // Somebody sent it: it comes again by that.
                // SAFETY: no preconditions.
                unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: whoever had the signal before gave a function of this kind, as its flags say.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above, without the flag.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Puts a page of zeros in the place of the one at an address.
///
/// # Safety
/// That page is of a mapping that this process has made and holds no references into.
unsafe fn replace(address: usize) -> bool {
    // SAFETY: no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let at = std::ptr::without_provenance_mut(address & !(page - 1));
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page is of a mapping of this process, as the caller says. Another thread may have
    // replaced it just before, and written to it; nobody else sees that.
    unsafe { libc::mmap(at, page, prot, flags, -1, 0) == at }
}
