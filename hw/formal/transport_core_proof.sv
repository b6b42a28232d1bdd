// transport_core: no request passes without the verdict on itself; each packet is taken out of the receive buffer once; every credit that an
// event brings or takes is accounted for; no order is given to a queue that is full. The connection's line, the call table, packets and
// entries are any at all; what waits in a queue stays as it is until it is taken.
module transport_core_proof (
    input logic clk,
    input logic rst,
    input logic [31:0] now,
    input logic [31:0] cycle,
    input logic packet_valid,
    input nic_pkg::packet_t packet_next,
    input logic entry_valid,
    input nic_pkg::entry_t entry_next,
    input logic command_valid,
    input logic [15:0] command_connection,
    input logic [1:0] command,
    input logic lookup_ready,
    input logic answer,
    input logic [511:0] answer_line,
    input logic packet_denied,
    input logic bucket_has_token,
    input logic [0:0] balance_flow,
    input logic [1:0] credit_spare,
    input nic_pkg::call_t call,
    input logic call_used,
    input logic call_rests,
    input logic [3:0] call_tries,
    input nic_pkg::progress_t call_progress,
    input logic due,
    input logic [nic_pkg::BUFFER_BITS-1:0] due_index,
    input logic [15:0] flow_calls,
    input logic [7:0] calls,
    // The queues of orders give one away.
    input logic transmit_pop,
    input logic receive_pop
);
  logic packet_take;
  logic entry_take;
  logic command_take;
  logic lookup;
  logic [15:0] lookup_connection;
  logic lookup_anew;
  logic update;
  logic [511:0] update_line;
  logic [2:0] bucket;
  logic bucket_spend;
  logic [1:0] balance;
  logic [7:0] balance_first;
  logic [7:0] balance_mask;
  logic balance_used;
  logic credit_take;
  logic credit_give;
  logic [0:0] credit_flow;
  logic begin_call;
  logic [nic_pkg::BUFFER_BITS-1:0] call_index;
  nic_pkg::call_t begin_data;
  logic end_call;
  logic send_again;
  logic ask_again;
  logic at_work;
  logic advance;
  nic_pkg::progress_t advance_progress;
  logic due_take;
  logic buffer_give;
  logic [nic_pkg::BUFFER_BITS-1:0] buffer_give_id;
  logic [15:0] packet_method;
  logic [255:0] packet_payload;
  logic transmit_valid;
  nic_pkg::transmit_t transmit;
  logic receive_valid;
  nic_pkg::receive_t receive;
  logic count_token, count_stale, count_protocol, count_room, count_refused, count_sent, count_delivered;
  logic count_denied, count_limited, count_repeated, count_completed, count_failed, count_again;
  logic [31:0] duration;
  transport_core #(
      .FLOWS(2),
      .FLOW_BITS(1)
  ) dut (
      .tries_max(4'd3),
      .control_flow(8'd0),
      .flow_stride_log2(8'h44),
      .flow_calls_max(16'h0808),
      .area_base(32'h0001_0000),
      .area_lines_log2(4'd7),
      .*
  );

  // The queues of orders have four places each, and any number of orders to begin with.
  logic [2:0] transmit_level_q;
  logic [2:0] receive_level_q;
  logic transmit_room_for_two;
  logic receive_room_for_two;
  assign transmit_room_for_two = transmit_level_q <= 3'd2;
  assign receive_room_for_two = receive_level_q <= 3'd2;

  // What was chosen, and what has become of it.
  logic packet_held_q = 1'b0;
  nic_pkg::packet_t packet;
  logic entry_held_q = 1'b0;
  nic_pkg::entry_t entry;
  logic packet_waits_q = 1'b0;
  nic_pkg::packet_t packet_q;
  logic denied_q;
  logic entry_waits_q = 1'b0;
  nic_pkg::entry_t entry_q;
  logic due_waits_q = 1'b0;
  logic [nic_pkg::BUFFER_BITS-1:0] due_index_q;
  logic [3:0] host_kind;
  assign host_kind = receive.head[7:4];
  logic delivered;
  assign delivered = receive_valid && receive.deliver;
  // The event is decided now: of a packet, its lines are taken out of the receive buffer.
  logic packet_done;
  logic entry_done;
  assign packet_done = packet_held_q && receive_valid && receive.lines != 6'd0;
  assign entry_done = entry_held_q && (begin_call || credit_give || buffer_give);
  // Where the slot of the packet stands, by the line that was answered last.
  logic [511:0] line_q;
  logic [2:0] packet_phase;
  logic [31:0] packet_slot_call;
  assign packet_phase = line_q[nic_pkg::CONNECTION_PHASES+3*packet.first[10:8]+:3];
  assign packet_slot_call = line_q[nic_pkg::CONNECTION_CALLS+32*packet.first[10:8]+:32];
  // What the access list was shown a cycle ago.
  logic [255:0] payload_q;
  initial assume (rst && transmit_level_q <= 3'd4 && receive_level_q <= 3'd4);
  always_ff @(posedge clk) begin
    packet_waits_q <= packet_valid && !packet_take && !rst;
    packet_q <= packet_next;
    denied_q <= packet_denied;
    payload_q <= packet_payload;
    if (answer) line_q <= answer_line;
    entry_waits_q <= entry_valid && !entry_take && !rst;
    entry_q <= entry_next;
    due_waits_q <= due && !due_take && !rst;
    due_index_q <= due_index;
    if (rst) begin
      packet_held_q <= 1'b0;
      entry_held_q <= 1'b0;
    end else begin
      transmit_level_q <= transmit_level_q + 3'(transmit_valid) - 3'(transmit_pop && transmit_level_q != 3'd0);
      receive_level_q <= receive_level_q + 3'(receive_valid) - 3'(receive_pop && receive_level_q != 3'd0);
      packet_held_q <= packet_take || (packet_held_q && !packet_done);
      entry_held_q <= entry_take || (entry_held_q && !entry_done);
    end
    if (packet_take) packet <= packet_next;
    if (entry_take) entry <= entry_next;
    // What waits stays, and what the access list says of what was chosen follows from it.
    if (packet_waits_q) assume (packet_valid && packet_next == packet_q);
    if (packet_valid) assume (packet_next.lines != 6'd0);
    if (entry_waits_q) assume (entry_valid && entry_next == entry_q);
    if (due_waits_q) assume (due && due_index == due_index_q);
    if (!rst) begin
      // Orders are given only with room for them, and events taken only when they are there, one at a time.
      if (transmit_valid) assert (transmit_level_q != 3'd4);
      if (receive_valid) assert (receive_level_q != 3'd4);
      if (packet_take) assert (packet_valid && (!packet_held_q || packet_done));
      if (entry_take) assert (entry_valid && (!entry_held_q || entry_done));
      assert (2'(packet_take) + 2'(entry_take) <= 2'd1);
      assert (2'(packet_done) + 2'(entry_done) + 2'(due_take) <= 2'd1);
      // Every packet leaves the receive buffer, whole, once.
      if (receive_valid && receive.lines != 6'd0) assert (packet_held_q && receive.lines == packet.lines);
      if (receive_valid && !packet_done) assert (receive.deliver);
      // No request without the verdict on itself, said of it a cycle before.
      if (bucket_spend) begin
        assert (packet_done && !denied_q && bucket_has_token);
        assert (payload_q == packet.first[447:192]);
        assert (packet.first[3:0] == nic_pkg::PACKET_REQUEST);
        assert (update);
      end
      // What is delivered without it is the last packet of what passed before.
      if (delivered && host_kind == nic_pkg::ENTRY_REQUEST) begin
        assert (packet_done && update && packet.first[3:0] == nic_pkg::PACKET_REQUEST);
        if (!bucket_spend)
          assert (receive.store && packet_phase == nic_pkg::PHASE_RECEIVING && packet_slot_call == packet.first[95:64]);
      end
      // A packet is stored in an area of its own connection: a request's in its slot's, a response's in the one that the call has.
      if (receive_valid && receive.store) begin
        assert (packet_done && !receive.raw && !receive.payload);
        assert ((receive.store_address - 32'h0001_0000) >> 7 == 32'({packet.first[31:16],
            (packet.first[3:0] == nic_pkg::PACKET_RESPONSE) ? call.area : packet.first[10:8]}));
      end
      // An entry's credit is kept for the call's end, given back, or used for the refusal.
      if (entry_done) assert (2'(begin_call) + 2'(credit_give) + 2'(delivered) == 2'd1);
      if (!entry_done) assert (!begin_call && !credit_give && !buffer_give);
      // What a call's end writes uses the call's credit; what comes from the wire takes one, if it is shown.
      if (end_call) assert (delivered && !credit_take && receive.flow == call.flow);
      if (packet_done && delivered) assert (credit_take != end_call);
      if (credit_take) assert (delivered && credit_spare[credit_flow] && receive.flow[0] == credit_flow);
      if (due_take && delivered) assert (end_call);
      // A buffer is kept by a call, given to the transmitter, or given back.
      if (entry_done) assert (2'(begin_call) + 2'(transmit_valid && transmit.release_buffer) + 2'(buffer_give) == 2'd1);
      if (entry_done && transmit_valid) assert (transmit.buffer == entry.buffer);
      if (buffer_give) assert (buffer_give_id == entry.buffer);
      if (!entry_done && transmit_valid) assert (!transmit.release_buffer);
    end
  end
endmodule
