// What a proxy's threads do, event by event: system calls, being woken, on and off a core, packets sent, sockets that
// become readable; and, by a timer, where its code is.
//
// The programs only filter and write events down. What the events mean is decided in Rust, where it can be tested.
// Compiled by `build.sh` beside this file; the object is kept in the repository so that nobody needs clang to build or use
// the tool, and a test says when the object was built from another source.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define CORE __attribute__((preserve_access_index))
#define MAP_VALUE(name, value) int (*name)[value]

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_RING = 27 };
enum { RING_NO_WAKEUP = 1 };

// Numbers of helpers, from include/uapi/linux/bpf.h.
static void *(*lookup)(void *map, const void *key) = (void *)1;
static u64 (*now_ns)(void) = (void *)5;
static u64 (*current_ids)(void) = (void *)14;
static u32 (*this_cpu)(void) = (void *)8;
static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static void *(*reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*submit)(void *data, u64 flags) = (void *)132;

// The fields of the kernel's types that are read; the loader finds where they are in the running kernel.
struct pt_regs {
    unsigned long orig_ax, di;
} CORE;
struct task_struct {
    int pid, tgid;
} CORE;
struct sock_common {
    u16 skc_dport, skc_num;
} CORE;
struct sock {
    struct sock_common __sk_common;
} CORE;
// The kernel's own layout of what a program at a perf event gets (uapi); it does not move.
struct sampled_registers {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

// As `RawEvent` in src/trace/event.rs.
enum kind { ENTER = 1, LEAVE, OFF_CORE, ON_CORE, WAKING, READABLE, SENT };
struct event {
    u64 time_ns;
    u32 thread;
    u16 kind;
    u16 cpu;
    // Of ENTER and LEAVE the number of the system call, of READABLE the local port, of OFF_CORE whether it still wants to run.
    u32 what;
    // Of ENTER the first argument, of LEAVE the result, of READABLE the peer's port.
    int detail;
};

struct {
    MAP_VALUE(type, MAP_RING);
    MAP_VALUE(max_entries, 1 << 25);
} events SEC(".maps");
// Processes that are watched.
struct {
    MAP_VALUE(type, MAP_HASH);
    MAP_VALUE(max_entries, 256);
    u32 *key;
    u8 *value;
} processes SEC(".maps");
// Ports whose sockets are watched, of whatever process.
struct {
    MAP_VALUE(type, MAP_HASH);
    MAP_VALUE(max_entries, 256);
    u16 *key;
    u8 *value;
} ports SEC(".maps");
// Events and samples that found no room.
struct {
    MAP_VALUE(type, MAP_ARRAY);
    MAP_VALUE(max_entries, 2);
    u32 *key;
    u64 *value;
} lost SEC(".maps");

INLINE void count_lost(u32 which)
{
    u64 *count = lookup(&lost, &which);
    if (count)
        __sync_fetch_and_add(count, 1);
}

INLINE int is_watched(u32 process)
{
    return lookup(&processes, &process) != 0;
}

INLINE int write_down(u32 thread, u16 kind, u32 what, int detail)
{
    struct event *event = reserve(&events, sizeof(*event), 0);
    if (!event) {
        count_lost(0);
        return 0;
    }
    event->time_ns = now_ns();
    event->thread = thread;
    event->kind = kind;
    event->cpu = this_cpu();
    event->what = what;
    event->detail = detail;
    submit(event, RING_NO_WAKEUP);
    return 0;
}

SEC("tp_btf/sys_enter")
int enter(u64 *arguments)
{
    u64 ids = current_ids();
    if (!is_watched(ids >> 32))
        return 0;
    struct pt_regs *registers = (void *)arguments[0];
    return write_down(ids, ENTER, arguments[1], registers->di);
}

SEC("tp_btf/sys_exit")
int leave(u64 *arguments)
{
    u64 ids = current_ids();
    if (!is_watched(ids >> 32))
        return 0;
    struct pt_regs *registers = (void *)arguments[0];
    return write_down(ids, LEAVE, registers->orig_ax, arguments[1]);
}

SEC("tp_btf/sched_switch")
int switched(u64 *arguments)
{
    struct task_struct *before = (void *)arguments[1], *after = (void *)arguments[2];
    if (is_watched(before->tgid))
        // The state is 0 for a thread that was preempted, and still wants to run.
        write_down(before->pid, OFF_CORE, (u32)arguments[3] == 0, 0);
    if (is_watched(after->tgid))
        write_down(after->pid, ON_CORE, 0, 0);
    return 0;
}

SEC("tp_btf/sched_waking")
int waking(u64 *arguments)
{
    struct task_struct *task = (void *)arguments[0];
    if (is_watched(task->tgid))
        write_down(task->pid, WAKING, 0, 0);
    return 0;
}

SEC("tp_btf/sk_data_ready")
int readable(u64 *arguments)
{
    struct sock *sock = (void *)arguments[0];
    u16 local = sock->__sk_common.skc_num;
    u16 peer = __builtin_bswap16(sock->__sk_common.skc_dport);
    if (!lookup(&ports, &local) && !lookup(&ports, &peer))
        return 0;
    return write_down(current_ids(), READABLE, local, peer);
}

SEC("tp_btf/net_dev_start_xmit")
int sent(u64 *arguments)
{
    u64 ids = current_ids();
    if (!is_watched(ids >> 32))
        return 0;
    return write_down(ids, SENT, 0, 0);
}

// As `RawSample` in src/stacks/sample.rs.
#define STACK_BYTES 16384
struct sample {
    u64 time_ns;
    u32 thread;
    u32 stack_bytes;
    u64 ip, sp, bp;
    u8 stack[STACK_BYTES];
};
struct {
    MAP_VALUE(type, MAP_RING);
    MAP_VALUE(max_entries, 1 << 26);
} samples SEC(".maps");

SEC("perf_event")
int sample(struct sampled_registers *registers)
{
    u64 ids = current_ids();
    // The kernel's part of the time is known from the tracepoints.
    if (!is_watched(ids >> 32) || (registers->cs & 3) != 3)
        return 0;
    struct sample *sample = reserve(&samples, sizeof(*sample), 0);
    if (!sample) {
        count_lost(1);
        return 0;
    }
    sample->time_ns = now_ns();
    sample->thread = ids;
    sample->ip = registers->ip;
    sample->sp = registers->sp;
    sample->bp = registers->bp;
    // Less where the stack ends sooner.
    if (read_user(sample->stack, STACK_BYTES, (void *)registers->sp) == 0)
        sample->stack_bytes = STACK_BYTES;
    else if (read_user(sample->stack, 4096, (void *)registers->sp) == 0)
        sample->stack_bytes = 4096;
    else if (read_user(sample->stack, 1024, (void *)registers->sp) == 0)
        sample->stack_bytes = 1024;
    else
        sample->stack_bytes = 0;
    submit(sample, RING_NO_WAKEUP);
    return 0;
}

// Programs that do nothing, by which the doctor finds out what the kernel grants.
SEC("uprobe")
int nothing_in_user_space(void *registers)
{
    return 0;
}

SEC("kprobe")
int nothing_in_the_kernel(void *registers)
{
    return 0;
}

SEC("fentry/tcp_sendmsg")
int nothing_at_an_entry(u64 *arguments)
{
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
