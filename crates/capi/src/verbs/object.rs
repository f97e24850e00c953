//! Objects as C sees them.

use core::cell::UnsafeCell;

use feroce_lint::{self as lint, Kind};

/// An object that begins with a structure of the C header.
///
/// The public part is in an [`UnsafeCell`]: programs read it, and write some of its fields, at any
/// time, so no Rust reference to it is ever made.
///
/// An object is *live* from [`Object::give`] until [`Object::take`]. The manual pages leave it to
/// the program to pass live objects only; every `SAFETY` comment that calls a pointer live at the
/// start of a call relies on that.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an `UnsafeCell<Self::C>`, or something that is
/// `repr(C)` and begins with one.
pub(crate) unsafe trait Object: Sized {
    /// What C calls it.
    type C;

    /// What it is to a program that has to free it, if it has to.
    const KIND: Option<Kind> = None;

    /// Hands it to the program; it is live from now on.
    fn give(self) -> *mut Self::C {
        Self::KIND.into_iter().for_each(lint::made);
        Box::into_raw(Box::new(self)).cast()
    }

    /// The object behind a pointer of the program.
    ///
    /// # Safety
    /// `public` is live, and stays so for `'a`.
    unsafe fn of<'a>(public: *mut Self::C) -> &'a Self {
        // SAFETY: the object is live, so `give` has leaked a whole `Self` there. Until `take`, only
        // shared references to it are made.
        unsafe { &*public.cast::<Self>() }
    }

    /// Takes it back from the program, which ends its life.
    ///
    /// # Safety
    /// `public` is live; neither the program nor another object uses it after this call.
    unsafe fn take(public: *mut Self::C) -> Box<Self> {
        Self::KIND.into_iter().for_each(lint::freed);
        // SAFETY: the object is live, so the pointer came from the `Box` in `give`; by this
        // function's contract this is its last use.
        unsafe { Box::from_raw(public.cast()) }
    }

    /// The public part.
    fn public(&self) -> *mut Self::C {
        let start: *const Self = self;
        // The cell at the start makes writing through it legal.
        UnsafeCell::raw_get(start.cast::<UnsafeCell<Self::C>>())
    }
}
