//! Objects as C sees them.

use core::cell::UnsafeCell;

use feroce_lint::{self as lint, Kind};

/// An object that begins with a structure of the C header.
///
/// The public part stands in an [`UnsafeCell`]: programs read it, and write some of its fields,
/// whenever they like, so no Rust reference to it is ever made.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an `UnsafeCell<Self::C>`, or something that is
/// `repr(C)` and begins with one.
pub(crate) unsafe trait Object: Sized {
    /// What C calls it.
    type C;

    /// What it is to a program that has to free it, if it has to.
    const KIND: Option<Kind> = None;

    /// Gives it to the program.
    fn give(self) -> *mut Self::C {
        Self::KIND.into_iter().for_each(lint::made);
        Box::into_raw(Box::new(self)).cast()
    }

    /// Looks at an object of the program.
    ///
    /// # Safety
    /// `public` is what [`Object::give`] returned, and stays with the program for `'a`: verbs
    /// leave it to programs not to destroy what they use.
    unsafe fn of<'a>(public: *mut Self::C) -> &'a Self {
        // SAFETY: the pointer leads to a whole `Self`, of which only shared references are made.
        unsafe { &*public.cast::<Self>() }
    }

    /// Takes it back.
    ///
    /// # Safety
    /// As for [`Object::of`], and the program uses it no more.
    unsafe fn take(public: *mut Self::C) -> Box<Self> {
        Self::KIND.into_iter().for_each(lint::freed);
        // SAFETY: the pointer came out of a box, and nobody uses it any more.
        unsafe { Box::from_raw(public.cast()) }
    }

    /// The public part.
    fn public(&self) -> *mut Self::C {
        let start: *const Self = self;
        // The cell at the start makes writing through it legal.
        UnsafeCell::raw_get(start.cast::<UnsafeCell<Self::C>>())
    }
}

/// A C structure of which every bit is zero, to be filled in.
///
/// # Safety
/// All zeros are a value of `T`: numbers, pointers that may be NULL, optional functions.
pub(crate) const unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller says that all zeros are a value.
    unsafe { core::mem::zeroed() }
}
