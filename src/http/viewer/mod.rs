//! The page for people ([`mod@page`]) and its data ([`api`]). [`waiters`] limits how many requests wait for changes.

mod api;
mod page;
mod waiters;

pub(super) use self::{
    api::{end, list, one, session},
    page::{is_wanted, page},
    waiters::Waiters,
};
