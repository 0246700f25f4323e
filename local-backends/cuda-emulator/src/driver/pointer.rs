//! Pointers that the program passes. That they are valid or null is its promise, as it is to the real driver.
use super::{Answer, Code};
use std::ffi::{CStr, c_char};

/// A place for an answer.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the answer; a null pointer is an error.
    pub(super) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the program promises that it is a place for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the answer if it is asked for.
    pub(super) fn set_if(self, value: T) {
        let _ = self.set(value);
    }
}

impl Out<u8> {
    /// A text with its zero, cut to so many bytes.
    pub(super) fn text(self, text: &str, room: i32) -> Answer {
        let room = usize::try_from(room).ok().filter(|r| *r > 0 && !self.0.is_null()).ok_or(Code::INVALID_VALUE)?;
        let cut = &text.as_bytes()[..text.len().min(room - 1)];
        // SAFETY: the program promises room for so many bytes, and the zero fits behind what is copied.
        unsafe {
            std::ptr::copy_nonoverlapping(cut.as_ptr(), self.0, cut.len());
            self.0.add(cut.len()).write(0);
        }
        Ok(())
    }
}

/// Values that the program passes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Values at an address that the program passed as a number.
    pub(super) fn at(place: *const T) -> Self {
        Self(place)
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value at a place, of which the program promises that there are so many.
    pub(super) fn get(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the program promises that many values.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl In<u8> {
    /// So many bytes.
    pub(super) fn bytes(self, count: usize) -> Answer<Vec<u8>> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the program promises that many bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }

    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    /// A text that ends with a zero.
    pub(super) fn text(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the program promises a zero at its end.
        let text = unsafe { CStr::from_ptr(self.0.cast::<c_char>()) };
        Ok(text.to_string_lossy().into_owned())
    }
}
