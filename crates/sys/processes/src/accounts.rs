//! Users and groups by name, as the system has them: from its files, or from wherever `nsswitch.conf` says. A directory
//! server may be asked, so these block.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Room for an entry's texts at first, in bytes, and at most: a group names all of its members.
const ENTRY_BYTES: usize = 1 << 10;
const ENTRY_BYTES_MAX: usize = 4 << 20;

/// The number of a user; none of that name is no error.
pub fn find_user(name: &str) -> io::Result<Option<u32>> {
    let name = c_name(name)?;
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    look_up(|texts| {
        let mut found = null_mut();
        // SAFETY: the name ends with a zero; the entry and the texts have the room that is said, and outlive the call.
        let error = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                texts.as_mut_ptr(),
                texts.len(),
                &raw mut found,
            )
        };
        // SAFETY: an entry that was found is whole.
        (error, (!found.is_null()).then(|| unsafe { (*found).pw_uid }))
    })
}

/// The number of a group; none of that name is no error.
pub fn find_group(name: &str) -> io::Result<Option<u32>> {
    let name = c_name(name)?;
    let mut entry = MaybeUninit::<libc::group>::uninit();
    look_up(|texts| {
        let mut found = null_mut();
        // SAFETY: the name ends with a zero; the entry and the texts have the room that is said, and outlive the call.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                texts.as_mut_ptr(),
                texts.len(),
                &raw mut found,
            )
        };
        // SAFETY: an entry that was found is whole.
        (error, (!found.is_null()).then(|| unsafe { (*found).gr_gid }))
    })
}

/// The name of a user; none of that number is no error.
pub fn name_of_user(user: u32) -> io::Result<Option<String>> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    look_up(|texts| {
        let mut found = null_mut();
        // SAFETY: the entry and the texts have the room that is said, and outlive the call.
        let error = unsafe {
            libc::getpwuid_r(
                user,
                entry.as_mut_ptr(),
                texts.as_mut_ptr(),
                texts.len(),
                &raw mut found,
            )
        };
        let name = (!found.is_null()).then(|| {
            // SAFETY: an entry that was found is whole, and its name is a text with a zero in `texts`.
            unsafe { CStr::from_ptr((*found).pw_name) }
                .to_string_lossy()
                .into_owned()
        });
        (error, name)
    })
}

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::other("a name with a zero byte"))
}

/// Looks something up with more and more room for its texts. `with` gives the error's number, and what was found.
fn look_up<T>(
    mut with: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<T>),
) -> io::Result<Option<T>> {
    let mut texts: Vec<libc::c_char> = vec![0; ENTRY_BYTES];
    loop {
        match with(&mut texts) {
            (_, Some(found)) => return Ok(Some(found)),
            // What a library of names says of a name that there is not.
            (0 | libc::ENOENT | libc::ESRCH, None) => return Ok(None),
            (libc::ERANGE, None) if texts.len() < ENTRY_BYTES_MAX => texts.resize(texts.len() * 4, 0),
            (libc::EINTR, None) => {}
            (error, None) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_by_number() {
        assert_eq!(find_user("root").unwrap(), Some(0));
        assert_eq!(find_group("root").unwrap(), Some(0));
        assert_eq!(name_of_user(0).unwrap().as_deref(), Some("root"));
    }

    #[test]
    fn a_name_that_there_is_not_is_no_error() {
        assert_eq!(find_user("no-such-user-here").unwrap(), None);
        assert_eq!(find_group("no-such-group-here").unwrap(), None);
        assert_eq!(name_of_user(4_111_222_333).unwrap(), None);
        assert!(find_user("a\0b").is_err());
    }
}
