//! Children of `fork`. A file of its own: the process forks while nothing else goes on in it.

mod support;

use std::panic::catch_unwind;

use provost::blocking::block_on;
use provost::{App, Code};
use support::{Note, NotesClient, World};

/// Forks, has the child check what is here, and says which check failed; 0 for none.
fn failed_check(checks: &[(&str, &dyn Fn() -> bool)]) -> i32 {
    // SAFETY: the child ends by `_exit`, and waits for nothing that a thread of its parent would have to do.
    match unsafe { libc::fork() } {
        0 => {
            let failed = checks.iter().position(|(_, check)| !check());
            // SAFETY: nothing of the parent's is to be ended in order.
            unsafe { libc::_exit(failed.map_or(0, |at| at as i32 + 1)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the place for the status is there.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert!(
                waited == pid && libc::WIFEXITED(status),
                "the child ended by a signal: {status:x}"
            );
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let kept = std::cell::RefCell::new(Note::new(
        7,
        "the parent's own note, long enough for a block of its own",
    ));
    let refused = |code: Code, message: &str| {
        let is_clear = message.contains("this process was forked");
        (code == Code::FailedPrecondition || code == Code::ResourceExhausted) && is_clear
    };
    let checks: [(&str, &dyn Fn() -> bool); 5] = [
        ("attach", &|| {
            let attached = App::builder().socket(world.socket()).attach();
            attached.is_err_and(|status| refused(status.code(), status.message()))
        }),
        ("call", &|| {
            let called = block_on(client.echo(Note::default()));
            called.is_err_and(|status| refused(status.code(), status.message()))
        }),
        ("make a message", &|| {
            std::panic::set_hook(Box::new(|_| ()));
            catch_unwind(|| Note::new(8, "the child's note, long enough for a block of its own")).is_err()
        }),
        ("the parent's message is empty", &|| {
            kept.borrow_mut().number = 9;
            kept.borrow().text.is_empty() || kept.borrow().text.bytes().all(|byte| byte == 0)
        }),
        ("drop what is the parent's", &|| {
            drop(kept.replace(Note::default()));
            drop(block_on(NotesClient::connect(&app)));
            drop(app.clone());
            true
        }),
    ];
    let names: Vec<&str> = checks.iter().map(|(name, _)| *name).collect();
    match failed_check(&checks) {
        0 => {}
        failed => panic!("in the child: {}", names[failed as usize - 1]),
    }
    let kept = kept.into_inner();
    assert_eq!(kept.number, 7);
    assert!(kept.text.starts_with("the parent's own note"));
    let answer = block_on(client.echo(kept)).unwrap();
    assert_eq!(answer.get_ref().number, 7);
}
