//! Handles: a generation, a kind and a slot number in the guise of a pointer, so that a destroyed handle, or one of another kind, is an
//! error, never a stray access.

use std::sync::RwLock;

use crate::error::{Error, Result, Status};

/// Where the kind stands in a handle: above the slot number, below the generation.
const KIND: u32 = 28;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of live objects of one kind.
pub(crate) struct Table<T> {
    kind: &'static str,
    number: usize,
    slots: RwLock<Vec<Slot<T>>>,
}

impl<T: Clone> Table<T> {
    /// `number`: 1 to 15, another one for each kind.
    pub(crate) const fn new(kind: &'static str, number: usize) -> Self {
        Self { kind, number, slots: RwLock::new(Vec::new()) }
    }

    /// Keeps `value`; the handle is never 0.
    pub(crate) fn insert(&self, value: T) -> usize {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let index = slots.iter().position(|s| s.value.is_none()).unwrap_or_else(|| {
            slots.push(Slot { generation: 0, value: None });
            slots.len() - 1
        });
        let slot = &mut slots[index];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.value = Some(value);
        (slot.generation as usize) << 32 | self.number << KIND | (index + 1)
    }

    /// The object behind a handle.
    #[inline]
    pub(crate) fn get(&self, handle: usize) -> Result<T> {
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        self.live(&slots, handle).and_then(|i| slots[i].value.clone()).ok_or_else(|| self.unknown(handle))
    }

    /// Forgets it.
    pub(crate) fn remove(&self, handle: usize) -> Result<T> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        self.live(&slots, handle).and_then(|i| slots[i].value.take()).ok_or_else(|| self.unknown(handle))
    }

    fn live(&self, slots: &[Slot<T>], handle: usize) -> Option<usize> {
        let index = (handle & 0xFFFF_FFFF).checked_sub(self.number << KIND)?.checked_sub(1)?;
        slots.get(index).filter(|s| s.generation as usize == handle >> 32).map(|_| index)
    }

    #[cold]
    fn unknown(&self, handle: usize) -> Error {
        match handle {
            0 => Error::argument(Status::InvalidHandle, self.kind, "NULL", "is required"),
            h => Error::argument(Status::InvalidHandle, self.kind, format!("{h:#x}"), "was destroyed, or never was one"),
        }
    }
}
