;; Denies a gRPC call whose first field (a string) is "user-blocked-000": a proxy-wasm module (ABI 0.2.1). It holds the
;; headers back until the first bytes of the body are there.
(module
  (import "env" "proxy_get_buffer_bytes"
    (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response"
    (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 4)
  ;; 0: where the host puts the buffer's address, 4: its length; 16: the blocked user; 64: "access".
  (data (i32.const 16) "user-blocked-000")
  (data (i32.const 64) "access")
  ;; 4096: what the host allocates, one buffer at a time. 65536: the stream that was let through last, by its low bits.
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param $bytes i32) (result i32)
    (select (i32.const 4096) (i32.const 0) (i32.le_u (local.get $bytes) (i32.const 4096))))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_done") (param i32) (result i32) (i32.const 1))
  (func (export "proxy_on_request_headers") (param i32 i32) (param $end i32) (result i32)
    (i32.eqz (local.get $end)))
  (func $slot (param $id i32) (result i32)
    (i32.add (i32.const 65536) (i32.shl (i32.and (local.get $id) (i32.const 32767)) (i32.const 2))))
  (func $is_blocked (param $at i32) (result i32)
    (i32.and
      (i64.eq (i64.load (local.get $at)) (i64.load (i32.const 16)))
      (i64.eq (i64.load offset=8 (local.get $at)) (i64.load (i32.const 24)))))
  (func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
    (local $at i32)
    ;; Later parts of a stream that was let through are not looked at again.
    (if (i32.eq (i32.load (call $slot (local.get $id))) (local.get $id)) (then (return (i32.const 0))))
    (if (i32.and (i32.lt_u (local.get $size) (i32.const 32)) (i32.eqz (local.get $end)))
      (then (return (i32.const 1))))
    (i32.store (call $slot (local.get $id)) (local.get $id))
    (if (call $get_buffer (i32.const 0) (i32.const 0) (i32.const 32) (i32.const 0) (i32.const 4))
      (then (return (i32.const 0))))
    (if (i32.lt_u (i32.load (i32.const 4)) (i32.const 23)) (then (return (i32.const 0))))
    (local.set $at (i32.load (i32.const 0)))
    ;; The gRPC prefix has 5 bytes; then the tag of field 1 and the string's length, 16.
    (if (i32.ne (i32.load16_u offset=5 (local.get $at)) (i32.const 0x100a)) (then (return (i32.const 0))))
    (if (i32.eqz (call $is_blocked (i32.add (local.get $at) (i32.const 7)))) (then (return (i32.const 0))))
    (i32.store (call $slot (local.get $id)) (i32.const 0))
    (drop (call $respond (i32.const 403) (i32.const 64) (i32.const 6)
      (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 7)))
    (i32.const 1))
)
