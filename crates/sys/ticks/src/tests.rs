use proptest::prelude::*;

use super::*;

/// A counter that goes at some rate, and a kernel's clock that tells the true time.
#[derive(Clone, Debug)]
struct Simulated {
    true_ns: u64,
    ticks: f64,
    ticks_per_ns: f64,
    /// How long a look at the kernel's clock takes.
    look_ns: u64,
    counting: Counting,
    looks: u64,
    counted: u64,
}

impl Simulated {
    fn new(ticks_per_ns: f64) -> Simulated {
        Simulated {
            true_ns: 5_000,
            ticks: 1e12,
            ticks_per_ns,
            look_ns: 50,
            counting: Counting::Steady,
            looks: 0,
            counted: 0,
        }
    }

    fn pass(&mut self, ns: u64) {
        self.true_ns += ns;
        self.ticks += ns as f64 * self.ticks_per_ns;
    }
}

impl Source for Simulated {
    fn counting(&self) -> Counting {
        self.counting
    }

    fn ticks(&mut self) -> u64 {
        self.counted += 1;
        self.ticks as u64
    }

    fn kernel_ns(&mut self) -> u64 {
        self.looks += 1;
        self.pass(self.look_ns / 2);
        let now_ns = self.true_ns;
        self.pass(self.look_ns - self.look_ns / 2);
        now_ns
    }
}

/// What a clock may be wrong by: what its rate may, over the longest interval, and a few looks.
fn error_ns_max(look_ns: u64) -> u64 {
    INTERVAL_NS_MAX / LOOKS_PART + LOOKS as u64 * look_ns
}

proptest! {
    #[test]
    fn it_is_never_far_off_and_never_goes_back(
        ticks_per_ns in 0.02f64..6.0,
        steps in prop::collection::vec((1u32..28, -100i32..100, 20u64..400), 1..400),
    ) {
        let mut clock = Clock::of(Simulated::new(ticks_per_ns));
        let mut told_ns = 0;
        for (power, wander_ppm, look_ns) in steps {
            // The kernel disciplines its clock, so that the counter's rate wanders a little.
            clock.source.ticks_per_ns = ticks_per_ns * (1.0 + f64::from(wander_ppm) * 1e-6);
            clock.source.look_ns = look_ns;
            for part in 0..8 {
                clock.source.pass((1u64 << power) / 8 + part);
                let now_ns = clock.now_ns();
                prop_assert!(now_ns >= told_ns);
                told_ns = now_ns;
                let off_ns = now_ns.abs_diff(clock.source.true_ns);
                prop_assert!(off_ns <= error_ns_max(look_ns), "off by {off_ns} ns");
            }
        }
    }
}

#[test]
fn a_steady_counter_is_looked_at_instead_of_the_kernel() {
    let mut clock = Clock::of(Simulated::new(3.0));
    for _ in 0..10_000_000 {
        clock.source.pass(100);
        clock.now_ns();
    }
    let Simulated { looks, counted, .. } = clock.source;
    assert!(looks < 100_000, "{looks} looks at the kernel's clock in a second");
    assert!(counted >= 10_000_000);
    assert_eq!(clock.interval_ns, INTERVAL_NS_MAX);
}

#[test]
fn an_unknown_counter_is_not_looked_at() {
    let mut clock = Clock::of(Simulated {
        counting: Counting::Unknown,
        ..Simulated::new(3.0)
    });
    for _ in 0..1_000 {
        clock.source.pass(10_000);
        let before_ns = clock.source.true_ns;
        assert!((before_ns..=clock.source.true_ns + 50).contains(&clock.now_ns()));
    }
    assert_eq!((clock.source.looks, clock.source.counted), (1_000, 0));
}

#[test]
fn a_counter_that_does_not_keep_its_rate_is_given_up() {
    let mut clock = Clock::of(Simulated::new(3.0));
    let mut told_ns = 0;
    for step in 0..20 {
        clock.source.ticks_per_ns = if step % 2 == 0 { 3.0 } else { 0.5 };
        for _ in 0..10_000 {
            clock.source.pass(50_000);
            let now_ns = clock.now_ns();
            assert!(now_ns >= told_ns);
            told_ns = now_ns;
        }
    }
    let counted = clock.source.counted;
    clock.source.pass(1_000);
    assert!(clock.now_ns().abs_diff(clock.source.true_ns) <= 50);
    assert_eq!(clock.source.counted, counted, "the kernel alone is asked");
}

#[test]
fn a_counter_that_is_set_back_does_not_set_the_clock_back() {
    let mut clock = Clock::of(Simulated::new(1.0));
    for _ in 0..1_000 {
        clock.source.pass(10_000);
        clock.now_ns();
    }
    let told_ns = clock.now_ns();
    clock.source.ticks -= 9e6;
    clock.source.pass(1_000);
    let now_ns = clock.now_ns();
    assert!(now_ns >= told_ns && now_ns.abs_diff(clock.source.true_ns) <= error_ns_max(50));
}

#[test]
fn this_machines_clock_agrees_with_the_kernels() {
    let mut clock = Clock::<Machine>::default();
    let mut told_ns = 0;
    let start = clock.source.start();
    let ns = |of: std::time::Duration| of.as_nanos() as u64;
    // However long other programs keep this one from its core, it looks between two looks at the kernel's clock.
    for look in 0..2_000 {
        if look % 100 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let before_ns = ns(start.elapsed());
        let now_ns = clock.now_ns();
        let after_ns = ns(start.elapsed());
        assert!(now_ns >= told_ns);
        told_ns = now_ns;
        let slack_ns = error_ns_max(1_000);
        assert!(
            (before_ns.saturating_sub(slack_ns)..=after_ns + slack_ns).contains(&now_ns),
            "{now_ns} is not between {before_ns} and {after_ns}"
        );
    }
}
