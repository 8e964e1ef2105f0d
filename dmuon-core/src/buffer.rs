//! Host memory for packed buffers: 64-byte aligned, unique while written, shared once frozen.

use crate::pool::Home;
use bytemuck::{Pod, Zeroable};
use std::{fmt, ops::Deref, sync::Arc};

/// Alignment of every buffer, in bytes: a cache line, and what vector kernels like best.
pub const ALIGNMENT: usize = 64;

/// One aligned line of storage.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; ALIGNMENT]);

/// A buffer with one owner, who may write it.
///
/// ```
/// use dmuon_core::Buffer;
///
/// let mut buffer = Buffer::zeroed(12);
/// buffer.as_f32_mut().copy_from_slice(&[1.0, 2.0, 3.0]);
/// let shared = buffer.freeze();
/// let peer = shared.clone();
/// assert!(shared.ptr_eq(&peer));
/// assert_eq!(peer.as_f32(), [1.0, 2.0, 3.0]);
/// ```
pub struct Buffer {
    storage: Storage,
}

/// A frozen buffer: cloning shares it, and the last clone to go returns its memory to the pool.
#[derive(Clone)]
pub struct SharedBuffer {
    storage: Arc<Storage>,
}

/// The memory of a buffer and the pool it goes back to.
pub(crate) struct Storage {
    /// Invariant: at least `len_bytes` long.
    lines: Vec<Line>,
    len_bytes: usize,
    home: Home,
}

impl Buffer {
    /// A buffer of `len_bytes` zeros outside any pool.
    pub fn zeroed(len_bytes: usize) -> Self {
        Self::from_lines(fresh_lines(len_bytes), len_bytes, Home::none())
    }

    /// A copy of `bytes` outside any pool.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// A copy of typed `elements` outside any pool.
    pub fn from_elements<T: Pod>(elements: &[T]) -> Self {
        Self::from_bytes(bytemuck::cast_slice(elements))
    }

    pub(crate) fn from_lines(lines: Vec<Line>, len_bytes: usize, home: Home) -> Self {
        debug_assert!(lines.len() * ALIGNMENT >= len_bytes);
        Self { storage: Storage { lines, len_bytes, home } }
    }

    /// Length in bytes, exactly as asked for.
    pub fn len_bytes(&self) -> usize {
        self.storage.len_bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// The contents as elements of `T`.
    ///
    /// # Panics
    /// The length is not a multiple of the element size.
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.as_slice())
    }

    /// The contents as elements of `T`, to be written.
    ///
    /// # Panics
    /// The length is not a multiple of the element size.
    pub fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.as_mut_slice())
    }

    /// The contents as `f32`; see [`elements`](Self::elements).
    pub fn as_f32(&self) -> &[f32] {
        self.elements()
    }

    /// The contents as `f32`, to be written; see [`elements_mut`](Self::elements_mut).
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        self.elements_mut()
    }

    /// Gives up writing in exchange for sharing.
    pub fn freeze(self) -> SharedBuffer {
        SharedBuffer { storage: Arc::new(self.storage) }
    }
}

impl SharedBuffer {
    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.storage.len_bytes
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The contents as elements of `T`.
    ///
    /// # Panics
    /// The length is not a multiple of the element size.
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.as_slice())
    }

    /// The contents as `f32`; see [`elements`](Self::elements).
    pub fn as_f32(&self) -> &[f32] {
        self.elements()
    }

    /// Whether both handles are the very same memory.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// How many handles there are to this memory, over all ranks.
    pub fn num_handles(&self) -> usize {
        Arc::strong_count(&self.storage)
    }

    /// The buffer to write again, if this is its last handle.
    ///
    /// # Errors
    /// Hands the buffer back when somebody else still reads it.
    pub fn try_into_unique(self) -> Result<Buffer, Self> {
        match Arc::try_unwrap(self.storage) {
            Ok(storage) => Ok(Buffer { storage }),
            Err(storage) => Err(Self { storage }),
        }
    }

    /// Identity of the memory, for maps; meaningful while the buffer lives.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.storage).addr()
    }
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len_bytes]
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.home.take_back(std::mem::take(&mut self.lines));
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len_bytes())
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes, {} handles)", self.len_bytes(), self.num_handles())
    }
}

/// Zeroed lines for `len_bytes` bytes; the operating system zeroes big ones on first touch.
pub(crate) fn fresh_lines(len_bytes: usize) -> Vec<Line> {
    bytemuck::zeroed_vec(len_bytes.div_ceil(ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_exact_and_memory_is_aligned() {
        for len_bytes in [0, 1, 63, 64, 65, 4096] {
            let buffer = Buffer::zeroed(len_bytes);
            assert_eq!(buffer.as_slice().len(), len_bytes);
            assert_eq!(buffer.as_slice().as_ptr().addr() % ALIGNMENT, 0);
        }
    }

    #[test]
    fn only_the_last_handle_may_write_again() {
        let shared = Buffer::from_elements(&[1.0f32, 2.0]).freeze();
        let reader = shared.clone();
        let shared = shared.try_into_unique().expect_err("a reader is left");
        drop(reader);
        let mut buffer = shared.try_into_unique().expect("the last handle");
        buffer.as_f32_mut()[0] = 3.0;
        assert_eq!(buffer.as_f32(), [3.0, 2.0]);
    }
}
