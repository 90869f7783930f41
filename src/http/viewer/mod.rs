//! The page for people: [`page`], and what it shows: [`api`]. [`waiters`] bounds how many wait for changes.

mod api;
mod page;
mod waiters;

pub(super) use self::{
    api::{end, list, one, session},
    page::{is_wanted, page},
    waiters::Waiters,
};
