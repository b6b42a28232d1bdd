// The NIC: what the host writes into transmit rings goes out as packets of the datagram protocol, and what comes in is written into
// receive rings (docs/nic.md). One clock, `clk`, with a synchronous reset; a port to a board puts crossings around it.
//
//   host memory ──► tx_poller ──► message buffers ──────────────────► packet_tx ──► wire
//        ▲               └ entries ─► transport_core ─ orders ─┬────────┘
//        │   connection_cache ◄──────►│  ▲   policies, balancer │
//        └── rx_writer ◄──────────────┼──┼─────────────────────┘
//                 ▲                   │  └ packets ── packet_rx ◄── wire
//                 └── receive buffer ◄┼───────────────────┘
module nic #(
    // Pairs of rings; a power of two, 8 at most.
    parameter int FLOWS = 4,
    // Slots of a transmit ring that are read at once.
    parameter int BATCH = 4,
    // The connection cache: sets and ways, as logarithms.
    parameter int SETS_LOG2 = 4,
    parameter int WAYS_LOG2 = 2,
    // Lines of the receive buffer, as a logarithm.
    parameter int RECEIVE_LINES_LOG2 = 7
) (
    input logic clk,
    input logic rst,
    // Time, in ticks of 64 ns.
    input logic [31:0] now,
    // Registers.
    input logic csr_write,
    input logic [15:0] csr_address,
    input logic [31:0] csr_write_data,
    output logic [31:0] csr_read_data,
    // Lines that the host pushes to a flow.
    input logic push_valid,
    output logic push_ready,
    input logic [7:0] push_flow,
    input logic [nic_pkg::LINE_BITS-1:0] push_line,
    // Lines of host memory. Reads are answered in order, and see what was written before.
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] host_data,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data,
    // The wire.
    output logic tx_valid,
    input logic tx_ready,
    output logic [nic_pkg::LINE_BITS-1:0] tx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes,
    output logic tx_last,
    output logic [47:0] tx_remote,
    input logic rx_valid,
    input logic [nic_pkg::LINE_BITS-1:0] rx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes,
    input logic rx_last,
    input logic rx_spoiled,
    input logic [47:0] rx_remote
);
  localparam int FLOW_BITS = (FLOWS > 1) ? $clog2(FLOWS) : 1;
  localparam int BUFFER_BITS = nic_pkg::BUFFER_BITS;
  localparam int BUFFER_ADDRESS_BITS = nic_pkg::BUFFER_BITS + nic_pkg::BUFFER_LINE_BITS;

  logic [31:0] cycle_q;
  always_ff @(posedge clk) begin
    if (rst) cycle_q <= '0;
    else cycle_q <= cycle_q + 32'd1;
  end

  // Settings.
  logic enable;
  logic checking;
  logic [7:0] control_flow;
  logic [31:0] table_base;
  logic [31:0] timeout;
  logic [3:0] tries_max;
  logic [4:0] key_offset;
  logic [31:0] area_base;
  logic [3:0] area_lines_log2;
  logic [32*FLOWS-1:0] flow_tx_base;
  logic [32*FLOWS-1:0] flow_rx_base;
  logic [32*FLOWS-1:0] flow_status;
  logic [4*FLOWS-1:0] flow_slots_log2;
  logic [4*FLOWS-1:0] flow_stride_log2;
  logic [FLOWS-1:0] flow_doorbell_mode;
  logic [FLOWS-1:0] flow_enable;
  logic [8*FLOWS-1:0] flow_calls_max;
  logic [16*FLOWS-1:0] flow_doorbell;
  logic [255:0] rule_control;
  logic [255:0] rule_low;
  logic [255:0] rule_high;
  logic [255:0] bucket_period;
  logic [255:0] bucket_burst;
  logic restart;
  logic [FLOW_BITS-1:0] restart_flow;
  logic [15:0] restart_slots;
  logic freed;
  logic [FLOW_BITS-1:0] freed_flow;
  logic [15:0] freed_total;
  logic freed_forged;
  logic command_valid;
  logic [1:0] command;
  logic [15:0] command_connection;
  logic command_take;
  logic [4:0] counter_index;
  logic [31:0] counter;
  logic [4:0] histogram_index;
  logic [31:0] histogram;
  registers #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) csr (
      .bucket_index(histogram_index),
      .bucket(histogram),
      .*
  );

  // Credits.
  logic poll_take;
  logic [FLOW_BITS-1:0] poll_flow;
  logic core_take;
  logic core_give;
  logic [FLOW_BITS-1:0] core_flow;
  logic written;
  logic [FLOW_BITS-1:0] written_flow;
  logic [FLOWS-1:0] available;
  logic [FLOWS-1:0] spare;
  logic [16*FLOWS-1:0] levels;
  /* verilator lint_off PINCONNECTEMPTY */
  receive_credits #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) credits (
      .helds(),
      .freed_totals(),
      .*
  );
  /* verilator lint_on PINCONNECTEMPTY */

  // Message buffers.
  logic buffer_valid;
  logic [BUFFER_BITS-1:0] buffer_id;
  logic buffer_take;
  logic buffer_write;
  logic [BUFFER_ADDRESS_BITS-1:0] buffer_write_address;
  logic [nic_pkg::LINE_BITS-1:0] buffer_write_data;
  logic [BUFFER_ADDRESS_BITS-1:0] buffer_read_address;
  logic [nic_pkg::LINE_BITS-1:0] buffer_read_data;
  logic [nic_pkg::BUFFERS-1:0] released_by_calls;
  logic [nic_pkg::BUFFERS-1:0] released_by_core;
  logic [nic_pkg::BUFFERS-1:0] released_by_transmitter;
  /* verilator lint_off PINCONNECTEMPTY */
  buffer_pool #(
      .BUFFERS_LOG2(BUFFER_BITS)
  ) pool (
      .clk,
      .rst,
      .take(buffer_take),
      .take_valid(buffer_valid),
      .take_id(buffer_id),
      .give(released_by_calls | released_by_core | released_by_transmitter),
      .taken()
  );
  /* verilator lint_on PINCONNECTEMPTY */
  line_ram #(
      .WIDTH(nic_pkg::LINE_BITS),
      .ADDRESS_BITS(BUFFER_ADDRESS_BITS)
  ) buffers (
      .clk,
      .write(buffer_write),
      .write_address(buffer_write_address),
      .write_data(buffer_write_data),
      .read_address(buffer_read_address),
      .read_data(buffer_read_data)
  );

  // Lines that the host pushes wait here.
  localparam int PUSH_BITS = FLOW_BITS + nic_pkg::LINE_BITS;
  logic pushed_valid;
  logic pushed_take;
  logic [FLOW_BITS-1:0] pushed_flow;
  logic [nic_pkg::LINE_BITS-1:0] pushed_line;
  logic push_good;
  // A push to a flow that does not exist is dropped.
  assign push_good = push_valid && push_flow < 8'(FLOWS);
  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH(PUSH_BITS),
      .DEPTH_LOG2(3)
  ) pushes (
      .clk,
      .rst,
      .push(push_good),
      .push_data({push_flow[FLOW_BITS-1:0], push_line}),
      .push_ready(push_ready),
      .pop(pushed_take),
      .pop_valid(pushed_valid),
      .pop_data({pushed_flow, pushed_line}),
      .level()
  );
  /* verilator lint_on PINCONNECTEMPTY */

  // Host memory.
  logic poll_read;
  logic poll_read_ready;
  logic [31:0] poll_read_address;
  logic poll_data_valid;
  logic cache_read;
  logic cache_read_ready;
  logic [31:0] cache_read_address;
  logic cache_data_valid;
  logic receive_write;
  logic receive_write_ready;
  logic [31:0] receive_write_address;
  logic [nic_pkg::LINE_BITS-1:0] receive_write_data;
  logic cache_write;
  logic cache_write_ready;
  logic [31:0] cache_write_address;
  logic [nic_pkg::LINE_BITS-1:0] cache_write_data;
  logic [nic_pkg::CONNECTION_BITS-1:0] cache_write_state;
  assign cache_write_data = nic_pkg::LINE_BITS'(cache_write_state);
  logic status_write;
  logic status_write_ready;
  logic [31:0] status_write_address;
  logic [nic_pkg::LINE_BITS-1:0] status_write_data;
  host_port host (
      .*
  );

  // As many entries as there are flows may follow one for which there was room: of each flow whose lines are being read, one.
  localparam int ENTRIES_LOG2 = 4;
  logic taken_valid;
  logic taken_ready;
  logic [ENTRIES_LOG2:0] entries_level;
  assign taken_ready = entries_level < (ENTRIES_LOG2 + 1)'((1 << ENTRIES_LOG2) - FLOWS);
  nic_pkg::entry_t taken;
  logic entry_valid;
  logic entry_take;
  nic_pkg::entry_t entry;
  logic [16*FLOWS-1:0] flow_taken;
  tx_poller #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS),
      .BATCH(BATCH)
  ) poller (
      .flow_base(flow_tx_base),
      .credit_available(available),
      .credit_take(poll_take),
      .credit_flow(poll_flow),
      .buffer_address(buffer_write_address),
      .buffer_data(buffer_write_data),
      .read(poll_read),
      .read_ready(poll_read_ready),
      .read_address(poll_read_address),
      .data_valid(poll_data_valid),
      .data(host_data),
      .push_valid(pushed_valid),
      .push_flow(pushed_flow),
      .push_line(pushed_line),
      .push_take(pushed_take),
      .entry_valid(taken_valid),
      .entry_ready(taken_ready),
      .entry(taken),
      .*
  );
  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH($bits(taken)),
      .DEPTH_LOG2(ENTRIES_LOG2)
  ) entries (
      .clk,
      .rst,
      .push(taken_valid),
      .push_data(taken),
      .push_ready(),
      .pop(entry_take),
      .pop_valid(entry_valid),
      .pop_data(entry),
      .level(entries_level)
  );
  /* verilator lint_on PINCONNECTEMPTY */
  status_writer #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) status (
      .write(status_write),
      .write_ready(status_write_ready),
      .write_address(status_write_address),
      .write_data(status_write_data),
      .*
  );

  // Packets from the wire.
  logic line_push;
  logic [nic_pkg::LINE_BITS-1:0] line_push_data;
  logic line_push_ready;
  logic line_commit;
  logic line_rollback;
  logic arrived_valid;
  logic arrived_ready;
  nic_pkg::packet_t arrived;
  logic count_good;
  logic count_length;
  logic count_check;
  logic count_kind;
  logic count_buffer;
  packet_rx receiver (
      .wire_valid(rx_valid),
      .wire_data(rx_data),
      .wire_bytes(rx_bytes),
      .wire_last(rx_last),
      .wire_spoiled(rx_spoiled),
      .wire_remote(rx_remote),
      .line_data(line_push_data),
      .line_ready(line_push_ready),
      .packet_valid(arrived_valid),
      .packet_ready(arrived_ready),
      .packet(arrived),
      .*
  );
  logic line_valid;
  logic line_take;
  logic [nic_pkg::LINE_BITS-1:0] line;
  packet_fifo #(
      .WIDTH(nic_pkg::LINE_BITS),
      .DEPTH_LOG2(RECEIVE_LINES_LOG2)
  ) receive_buffer (
      .clk,
      .rst,
      .push(line_push),
      .push_data(line_push_data),
      .push_ready(line_push_ready),
      .commit(line_commit),
      .rollback(line_rollback),
      .pop(line_take),
      .pop_valid(line_valid),
      .pop_data(line)
  );
  logic packet_valid;
  logic packet_take;
  nic_pkg::packet_t packet;
  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH($bits(arrived)),
      .DEPTH_LOG2(4)
  ) packets (
      .clk,
      .rst,
      .push(arrived_valid),
      .push_data(arrived),
      .push_ready(arrived_ready),
      .pop(packet_take),
      .pop_valid(packet_valid),
      .pop_data(packet),
      .level()
  );
  /* verilator lint_on PINCONNECTEMPTY */

  // Policies and the load balancer, on the packet that the transport has chosen.
  logic [15:0] packet_method;
  logic [255:0] packet_payload;
  logic [31:0] hash;
  logic [31:0] hash_q;
  logic denied;
  logic [2:0] bucket;
  logic has_token;
  logic bucket_spend;
  logic [1:0] balance;
  logic [7:0] balance_first;
  logic [7:0] balance_mask;
  logic balance_used;
  logic [FLOW_BITS-1:0] balance_flow;
  key_hash hasher (
      .offset(key_offset),
      .payload(packet_payload),
      .hash
  );
  // The packet is here a cycle before it is decided on.
  always_ff @(posedge clk) hash_q <= hash;
  access_list rules (
      .method(packet_method),
      .payload(packet_payload),
      .key_hash(hash),
      .*
  );
  token_buckets limits (
      .period(bucket_period),
      .burst(bucket_burst),
      .spend(bucket_spend),
      .*
  );
  load_balancer #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) balancer (
      .first(balance_first),
      .mask(balance_mask),
      .key_hash(hash_q),
      .used(balance_used),
      .flow(balance_flow),
      .*
  );

  // Connections and calls.
  logic lookup;
  logic lookup_ready;
  logic [15:0] lookup_connection;
  logic lookup_anew;
  logic answer;
  logic [nic_pkg::CONNECTION_BITS-1:0] answer_line;
  logic update;
  logic [nic_pkg::CONNECTION_BITS-1:0] update_line;
  logic count_hit;
  logic count_miss;
  connection_cache #(
      .SETS_LOG2(SETS_LOG2),
      .WAYS_LOG2(WAYS_LOG2)
  ) connections (
      .read(cache_read),
      .read_ready(cache_read_ready),
      .read_address(cache_read_address),
      .data_valid(cache_data_valid),
      .data(host_data[nic_pkg::CONNECTION_BITS-1:0]),
      .write(cache_write),
      .write_ready(cache_write_ready),
      .write_address(cache_write_address),
      .write_data(cache_write_state),
      .*
  );
  logic begin_call;
  logic [BUFFER_BITS-1:0] call_index;
  nic_pkg::call_t begin_data;
  nic_pkg::call_t call;
  logic call_used;
  logic call_rests;
  logic [3:0] call_tries;
  nic_pkg::progress_t call_progress;
  logic end_call;
  logic send_again;
  logic ask_again;
  logic at_work;
  logic advance;
  nic_pkg::progress_t advance_progress;
  logic due;
  logic [BUFFER_BITS-1:0] due_index;
  logic due_take;
  logic [8*FLOWS-1:0] flow_calls;
  logic [7:0] calls;
  logic sent;
  logic sent_release;
  logic [BUFFER_BITS-1:0] sent_buffer;
  call_table #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) table_of_calls (
      .index(call_index),
      .sent(sent && !sent_release),
      .sent_index(sent_buffer),
      .release_mask(released_by_calls),
      .*
  );

  // The transport, and its orders.
  logic buffer_give;
  logic [nic_pkg::BUFFER_BITS-1:0] buffer_give_id;
  logic transmit_valid;
  logic transmit_room_for_two;
  nic_pkg::transmit_t transmit;
  logic receive_valid;
  logic receive_room_for_two;
  nic_pkg::receive_t receive;
  logic count_token;
  logic count_stale;
  logic count_protocol;
  logic count_room;
  logic count_refused;
  logic count_sent;
  logic count_delivered;
  logic count_denied;
  logic count_limited;
  logic count_repeated;
  logic count_completed;
  logic count_failed;
  logic count_again;
  logic [31:0] duration;
  transport_core #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) core (
      .cycle(cycle_q),
      .packet_next(packet),
      .entry_next(entry),
      .packet_denied(denied),
      .bucket_has_token(has_token),
      .credit_spare(spare),
      .credit_take(core_take),
      .credit_give(core_give),
      .credit_flow(core_flow),
      .*
  );
  assign released_by_core = buffer_give ? nic_pkg::BUFFERS'(1) << buffer_give_id : '0;
  assign released_by_transmitter = (sent && sent_release) ? nic_pkg::BUFFERS'(1) << sent_buffer : '0;

  logic order_tx_valid;
  logic order_tx_take;
  nic_pkg::transmit_t order_tx;
  logic packet_sent;
  order_queue #(
      .WIDTH($bits(transmit))
  ) transmit_orders (
      .clk,
      .rst,
      .push(transmit_valid),
      .push_data(transmit),
      .room_for_two(transmit_room_for_two),
      .pop(order_tx_take),
      .pop_valid(order_tx_valid),
      .pop_data(order_tx)
  );
  // What has no line in the receive buffer and goes to no area is short. Packets of messages keep their order, and those that go to the host as they
  // are keep theirs.
  logic short_order_valid;
  logic short_order_take;
  nic_pkg::receive_t short_order;
  logic short_room_for_two;
  logic long_order_valid;
  logic long_order_take;
  nic_pkg::receive_t long_order;
  logic long_room_for_two;
  logic receive_is_long;
  assign receive_is_long = receive.lines > 6'd1 || receive.store || receive.raw;
  assign receive_room_for_two = short_room_for_two && long_room_for_two;
  order_queue #(
      .WIDTH($bits(receive))
  ) short_orders (
      .clk,
      .rst,
      .push(receive_valid && !receive_is_long),
      .push_data(receive),
      .room_for_two(short_room_for_two),
      .pop(short_order_take),
      .pop_valid(short_order_valid),
      .pop_data(short_order)
  );
  order_queue #(
      .WIDTH($bits(receive))
  ) long_orders (
      .clk,
      .rst,
      .push(receive_valid && receive_is_long),
      .push_data(receive),
      .room_for_two(long_room_for_two),
      .pop(long_order_take),
      .pop_valid(long_order_valid),
      .pop_data(long_order)
  );
  packet_tx transmitter (
      .command_valid(order_tx_valid),
      .command_take(order_tx_take),
      .command(order_tx),
      .buffer_address(buffer_read_address),
      .buffer_data(buffer_read_data),
      .done(sent),
      .done_release(sent_release),
      .done_buffer(sent_buffer),
      .wire_valid(tx_valid),
      .wire_ready(tx_ready),
      .wire_data(tx_data),
      .wire_bytes(tx_bytes),
      .wire_last(tx_last),
      .wire_remote(tx_remote),
      .count_sent(packet_sent),
      .*
  );
  rx_writer #(
      .FLOWS(FLOWS),
      .FLOW_BITS(FLOW_BITS)
  ) writer (
      .flow_base(flow_rx_base),
      .short_valid(short_order_valid),
      .short_take(short_order_take),
      .short_order,
      .long_valid(long_order_valid),
      .long_take(long_order_take),
      .long_order,
      .write(receive_write),
      .write_ready(receive_write_ready),
      .write_address(receive_write_address),
      .write_data(receive_write_data),
      .*
  );

  logic [31:0] events;
  always_comb begin
    events = '0;
    events[nic_registers_pkg::COUNT_PACKETS_RECEIVED] = count_good;
    events[nic_registers_pkg::COUNT_PACKETS_SENT] = packet_sent;
    events[nic_registers_pkg::COUNT_DROPPED_LENGTH] = count_length;
    events[nic_registers_pkg::COUNT_DROPPED_CHECK] = count_check;
    events[nic_registers_pkg::COUNT_DROPPED_KIND] = count_kind;
    events[nic_registers_pkg::COUNT_DROPPED_BUFFER] = count_buffer;
    events[nic_registers_pkg::COUNT_DROPPED_TOKEN] = count_token;
    events[nic_registers_pkg::COUNT_DROPPED_STALE] = count_stale;
    events[nic_registers_pkg::COUNT_DROPPED_PROTOCOL] = count_protocol;
    events[nic_registers_pkg::COUNT_DROPPED_ROOM] = count_room;
    events[nic_registers_pkg::COUNT_ENTRIES_TAKEN] = taken_valid;
    events[nic_registers_pkg::COUNT_ENTRIES_REFUSED] = count_refused || (pushed_take && !taken_valid);
    events[nic_registers_pkg::COUNT_REQUESTS_SENT] = count_sent;
    events[nic_registers_pkg::COUNT_REQUESTS_DELIVERED] = count_delivered;
    events[nic_registers_pkg::COUNT_REQUESTS_DENIED] = count_denied;
    events[nic_registers_pkg::COUNT_REQUESTS_LIMITED] = count_limited;
    events[nic_registers_pkg::COUNT_REQUESTS_REPEATED] = count_repeated;
    events[nic_registers_pkg::COUNT_CALLS_COMPLETED] = count_completed;
    events[nic_registers_pkg::COUNT_CALLS_FAILED] = count_failed;
    events[nic_registers_pkg::COUNT_RETRANSMISSIONS] = count_again;
    events[nic_registers_pkg::COUNT_CONNECTION_HITS] = count_hit;
    events[nic_registers_pkg::COUNT_CONNECTION_MISSES] = count_miss;
    events[nic_registers_pkg::COUNT_CREDITS_FORGED] = freed_forged;
  end
  monitor counters (
      .duration_valid(count_completed),
      .bucket_index(histogram_index),
      .bucket(histogram),
      .*
  );
endmodule
