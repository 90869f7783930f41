//! States of a guest: its memory, globals and descriptors between two calls.
//!
//! ```text
//!   image       the initial memory of every guest, in a file that all guests map
//!     + pages   the pages that differ from it, each stored once for all states that have it
//!   = state
//! ```
//!
//! Taking a state copies the pages that the guest has written, and restoring it writes the pages that differ. If the
//! memory has grown since, a new instance replaces the guest, as a memory cannot shrink.

use std::{fs::File, io, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_bytes::{ByteBuf, Bytes};

use crate::{
    machine::Machine,
    memory::{self, PAGE, Pages, Watch},
    wasi::Descriptors,
};

/// Number of pages in a region. States share all regions in which they do not differ.
const REGION: usize = 256;

/// A page.
type Page = [u8; PAGE];

/// The contents of a page that was never written.
static ZEROS: Page = [0; PAGE];

/// The initial state of all guests of one language.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    view: memmap2::Mmap,
    head: ImageHead,
    /// Watches the memories that begin with the image.
    watch: Watch,
}

/// The parts of an image other than its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImageHead {
    /// Values of the guest's mutable globals.
    pub(crate) globals: Vec<u64>,
    /// The guest's open files, which are the interpreter's own.
    pub(crate) descriptors: Descriptors,
}

impl Image {
    /// An image from a file that no longer changes.
    pub(crate) fn new(file: File, head: ImageHead) -> io::Result<Self> {
        let view = memory::map(&file)?;
        if !view.len().is_multiple_of(PAGE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { file, view, head, watch: Watch::open() })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.view.len()
    }

    fn page(&self, number: usize) -> &[u8] {
        let page = self.view.get(number * PAGE..(number + 1) * PAGE);
        page.unwrap_or(&ZEROS)
    }
}

/// A region: its pages that differ from the image.
type Region = [Option<Arc<Page>>; REGION];

/// A state of a guest.
#[derive(Clone)]
pub(crate) struct State {
    regions: Vec<Option<Arc<Region>>>,
    /// Size of its memory, in bytes.
    size: usize,
    globals: Vec<u64>,
    descriptors: Descriptors,
    /// Number of pages that differ from the image.
    count: usize,
}

/// A saved state: its differences from an older one, or from the image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedState {
    size: usize,
    globals: Vec<u64>,
    descriptors: Descriptors,
    /// Numbers and contents of the pages that differ.
    pages: Vec<(u32, SavedPage)>,
}

/// A page of a saved state, shared with the state itself.
#[derive(Debug)]
struct SavedPage(Arc<Page>);

impl Serialize for SavedPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Bytes::new(&self.0[..]).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SavedPage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = ByteBuf::deserialize(deserializer)?.into_vec();
        let page: Result<Box<Page>, _> = bytes.into_boxed_slice().try_into();
        page.map(|page| Self(page.into())).map_err(|_| de::Error::custom("no page"))
    }
}

impl State {
    /// The state to save, as its differences from `older`, the state saved before, or from the image.
    pub(crate) fn save(&self, older: Option<&Self>) -> SavedState {
        let number = |region: usize, within: usize| {
            u32::try_from(region * REGION + within).expect("a guest has 32-bit addresses")
        };
        let pages = self.regions.iter().enumerate().flat_map(|(at, region)| {
            let pages = region.iter().flat_map(|region| region.iter().enumerate());
            pages.filter_map(move |(within, page)| {
                let (number, page) = (number(at, within), page.as_ref()?);
                let then = older.and_then(|older| older.own(number as usize));
                let is_same = then.is_some_and(|then| Arc::ptr_eq(then, page));
                (!is_same).then(|| (number, SavedPage(page.clone())))
            })
        });
        let (globals, descriptors) = (self.globals.clone(), self.descriptors.clone());
        SavedState { size: self.size, globals, descriptors, pages: pages.collect() }
    }

    /// Loads a state that was saved with this older one. `None` if it is not valid, or its memory is larger than `most`
    /// bytes.
    pub(crate) fn load(saved: SavedState, older: Option<&Self>, most: usize) -> Option<Self> {
        let SavedState { size, globals, descriptors, pages } = saved;
        let regions = older.map(|older| older.regions.clone()).unwrap_or_default();
        let count = older.map_or(0, |older| older.count);
        let mut state = Self { regions, size, globals, descriptors, count };
        if size > most {
            return None;
        }
        for (number, SavedPage(page)) in pages {
            let number = number as usize;
            if (number + 1) * PAGE > size {
                return None;
            }
            state.set(number, page);
        }
        Some(state)
    }

    /// The state of the image.
    pub(crate) fn first(image: &Image) -> Self {
        let ImageHead { globals, descriptors } = image.head.clone();
        let size = image.view.len();
        Self { regions: vec![], size, globals, descriptors, count: 0 }
    }

    /// Bytes of its pages that differ from the image.
    pub(crate) fn own_bytes(&self) -> usize {
        self.count * PAGE
    }

    /// The guest's open files in this state.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    fn own(&self, number: usize) -> Option<&Arc<Page>> {
        self.regions.get(number / REGION)?.as_ref()?[number % REGION].as_ref()
    }

    fn page<'a>(&'a self, number: usize, image: &'a Image) -> &'a [u8] {
        self.own(number).map_or_else(|| image.page(number), |page| &page[..])
    }

    fn set(&mut self, number: usize, page: Arc<Page>) {
        if self.regions.len() <= number / REGION {
            self.regions.resize(number / REGION + 1, None);
        }
        let region =
            self.regions[number / REGION].get_or_insert_with(|| Arc::new([const { None }; REGION]));
        let place = &mut Arc::make_mut(region)[number % REGION];
        self.count += usize::from(place.is_none());
        *place = Some(page);
    }

    /// The present state of a guest whose last state was this one. The guest must have been in this state when its
    /// pages were last [requested](Pages::written).
    pub(crate) fn next(
        &self,
        machine: &mut Machine,
        image: &Image,
        pages: &mut Pages,
    ) -> io::Result<Self> {
        let mut next = self.clone();
        let (base, size) = machine.extent();
        let mut written = pages.written(base, size)?;
        let bytes = machine.bytes();
        // Pages that change from call to call stay unprotected and are compared each time, which costs less than having
        // the kernel record a write.
        written.retain(|number| {
            let number = *number as usize;
            let now = &bytes[number * PAGE..(number + 1) * PAGE];
            let is_same = now == self.page(number, image);
            if !is_same {
                let page: &Page = now.try_into().expect("a page");
                next.set(number, Arc::new(*page));
            }
            is_same
        });
        pages.protect(base, &written);
        next.size = size;
        next.globals = machine.globals();
        next.descriptors = machine.guest().process.descriptors.clone();
        Ok(next)
    }

    /// Restores this state in a guest that may differ from it in the pages `written`. Returns false if its memory has
    /// grown: then a new guest must be [opened](Self::open).
    pub(crate) fn restore(
        &self,
        machine: &mut Machine,
        image: &Image,
        written: &[u32],
    ) -> wasmtime::Result<bool> {
        if machine.extent().1 != self.size {
            return Ok(false);
        }
        let bytes = machine.bytes_mut();
        for number in written.iter().map(|number| *number as usize) {
            let then = self.page(number, image);
            let now = &mut bytes[number * PAGE..(number + 1) * PAGE];
            if now != then {
                now.copy_from_slice(then);
            }
        }
        self.settle(machine)?;
        Ok(true)
    }

    /// Restores this state in a new instance.
    pub(crate) fn open(&self, machine: &mut Machine, image: &Image) -> wasmtime::Result<()> {
        machine.grow_to(self.size)?;
        memory::map_over(machine, &image.file, image.view.len(), &image.watch)?;
        let bytes = machine.bytes_mut();
        for (region, pages) in self.regions.iter().enumerate() {
            for (within, page) in pages.iter().flat_map(|pages| pages.iter().enumerate()) {
                if let Some(page) = page {
                    let number = region * REGION + within;
                    bytes[number * PAGE..(number + 1) * PAGE].copy_from_slice(&page[..]);
                }
            }
        }
        self.settle(machine)
    }

    fn settle(&self, machine: &mut Machine) -> wasmtime::Result<()> {
        machine.set_globals(&self.globals)?;
        machine.guest().process.descriptors = self.descriptors.clone();
        Ok(())
    }
}
