//! States of a guest: what its memory, globals and descriptors were between two calls.
//!
//! ```text
//!   image       what every guest begins with, in a file, mapped by all
//!     + pages   those that differ from it, each kept once however many states have it
//!   = state
//! ```
//!
//! A state is taken by looking at the pages that the guest has written, and put back the same way. Where a
//! memory has grown meanwhile a new instance takes over, as a memory cannot shrink.

use std::{fs::File, io, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_bytes::{ByteBuf, Bytes};

use crate::{
    machine::Machine,
    memory::{self, PAGE, Pages, Watch},
    wasi::Descriptors,
};

/// Pages of a region, of which states share all that neither has changed.
const REGION: usize = 256;

/// A page.
type Page = [u8; PAGE];

/// What a page holds where nothing was ever written.
static ZEROS: Page = [0; PAGE];

/// What every guest of a kind begins with.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    view: memmap2::Mmap,
    head: ImageHead,
    /// Over the memories that begin with it.
    watch: Watch,
}

/// What is known of an image besides its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImageHead {
    /// Values of the guest's mutable globals.
    pub(crate) globals: Vec<u64>,
    /// What the guest has open: files of the interpreter's own.
    pub(crate) descriptors: Descriptors,
}

impl Image {
    /// One from a file that nobody changes any more.
    pub(crate) fn new(file: File, head: ImageHead) -> io::Result<Self> {
        let view = memory::map(&file)?;
        if !view.len().is_multiple_of(PAGE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { file, view, head, watch: Watch::open() })
    }

    /// Bytes of it.
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
    /// Bytes of its memory.
    size: usize,
    globals: Vec<u64>,
    descriptors: Descriptors,
    /// Pages that it has for itself.
    count: usize,
}

/// A state as it is kept: what differs from an older one, or from the image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedState {
    size: usize,
    globals: Vec<u64>,
    descriptors: Descriptors,
    /// Numbers and contents.
    pages: Vec<(u32, SavedPage)>,
}

/// A page, which the state that it is kept of shares.
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
    /// What is to be kept of it beside the older one that it came from, if that is kept.
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

    /// The state that was kept beside that older one; `None` if it is none, or would need more memory than this, in
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

    /// The state that the image is.
    pub(crate) fn first(image: &Image) -> Self {
        let ImageHead { globals, descriptors } = image.head.clone();
        let size = image.view.len();
        Self { regions: vec![], size, globals, descriptors, count: 0 }
    }

    /// Bytes of it that are not the image's.
    pub(crate) fn own_bytes(&self) -> usize {
        self.count * PAGE
    }

    /// Whether the guest has a node open in it.
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

    /// The state that a guest is in, of which this was the last: when pages were last [asked for](Pages::written)
    /// it was in this one.
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
        // Those that change from call to call are compared each time, which costs less than to be told of a write.
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

    /// Puts a guest back into this state, of which these pages may differ. False if its memory has grown: then a new
    /// one is to be [opened](Self::open).
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

    /// Puts an instance that is new into this state.
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
