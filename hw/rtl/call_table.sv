// The calls on their way, one for each message buffer that holds a request: what is needed to send it again and to complete it, when
// it is to be sent again, and how many each flow has.
//
// A buffer is released once its call has ended and no packet is being read from it.
module call_table #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    // Ticks of 64 ns.
    input logic [31:0] now,
    input logic [31:0] timeout,
    // A call begins; a packet of it is being sent.
    input logic begin_call,
    input logic [nic_pkg::BUFFER_BITS-1:0] index,
    input nic_pkg::call_t begin_data,
    // What is known of the call with this index, and whether it may be sent again: it has not ended and is not being sent.
    output nic_pkg::call_t call,
    output logic call_used,
    output logic call_rests,
    output logic [3:0] call_tries,
    output nic_pkg::progress_t call_progress,
    // It ends, is sent again, or is known to be at work at the server. At most one of these, and `begin_call`, at a time.
    input logic end_call,
    input logic send_again,
    // Packets of its response are asked for again: nothing of its buffer is sent.
    input logic ask_again,
    input logic at_work,
    // It goes on: more of the request or of the response is there.
    input logic advance,
    input nic_pkg::progress_t advance_progress,
    // A packet has left its buffer.
    input logic sent,
    input logic [nic_pkg::BUFFER_BITS-1:0] sent_index,
    output logic [nic_pkg::BUFFERS-1:0] release_mask,
    // A call that is due to be sent again.
    output logic due,
    output logic [nic_pkg::BUFFER_BITS-1:0] due_index,
    input logic due_take,
    // Calls on their way, by flow and together.
    output logic [8*FLOWS-1:0] flow_calls,
    output logic [7:0] calls
);
  localparam int BUFFERS = nic_pkg::BUFFERS;
  localparam int BUFFER_BITS = nic_pkg::BUFFER_BITS;

  logic [$bits(begin_data)-1:0] table_q[BUFFERS];
  logic [31:0] deadline_q[BUFFERS];
  logic [3:0] tries_q[BUFFERS];
  logic [$bits(call_progress)-1:0] response_q[BUFFERS];
  logic [BUFFERS-1:0] used_q;
  logic [BUFFERS-1:0] sending_q;
  // Ended while a packet of it was being sent.
  logic [BUFFERS-1:0] ended_q;
  logic [7:0] flow_calls_q[FLOWS];
  logic [7:0] calls_q;

  assign call = table_q[index];
  assign call_used = used_q[index];
  assign call_rests = used_q[index] && !sending_q[index];
  assign call_tries = tries_q[index];
  assign call_progress = response_q[index];
  assign calls = calls_q;
  always_comb begin
    for (int i = 0; i < FLOWS; i++) flow_calls[8*i+:8] = flow_calls_q[i];
  end

  // One call is looked at in a cycle.
  logic [BUFFER_BITS-1:0] scan_q;
  logic due_q;
  logic [BUFFER_BITS-1:0] due_index_q;
  logic [31:0] late;
  assign late = now - deadline_q[scan_q];
  assign due = due_q;
  assign due_index = due_index_q;

  logic [3:0] tries_next;
  logic [2:0] doublings;
  assign tries_next = (tries_q[index] == 4'd15) ? 4'd15 : tries_q[index] + 4'd1;
  assign doublings = (tries_next > 4'd6) ? 3'd6 : tries_next[2:0];

  logic [FLOW_BITS-1:0] flow;
  assign flow = begin_call ? begin_data.flow[FLOW_BITS-1:0] : call.flow[FLOW_BITS-1:0];

  logic [BUFFERS-1:0] index_bit;
  logic [BUFFERS-1:0] sent_bit;
  assign index_bit = BUFFERS'(1) << index;
  assign sent_bit = sent ? BUFFERS'(1) << sent_index : '0;
  // Ends now and is not being sent, or was being sent until now and has ended.
  assign release_mask = ((end_call ? index_bit : '0) & (~sending_q | sent_bit)) | (sent_bit & ended_q);

  always_ff @(posedge clk) begin
    if (begin_call) table_q[index] <= begin_data;
    if (begin_call || advance) response_q[index] <= begin_call ? '0 : advance_progress;
    if (begin_call || at_work || advance) begin
      tries_q[index] <= '0;
      deadline_q[index] <= now + (at_work ? timeout << 2 : timeout);
    end else if (send_again || ask_again) begin
      tries_q[index] <= tries_next;
      deadline_q[index] <= now + (timeout << doublings);
    end
    if (rst) begin
      used_q <= '0;
      sending_q <= '0;
      ended_q <= '0;
      calls_q <= '0;
      scan_q <= '0;
      due_q <= 1'b0;
      due_index_q <= '0;
      for (int i = 0; i < FLOWS; i++) flow_calls_q[i] <= '0;
    end else begin
      used_q <= (used_q | (begin_call ? index_bit : '0)) & ~(end_call ? index_bit : '0);
      sending_q <= (sending_q & ~sent_bit) | ((begin_call || send_again) ? index_bit : '0);
      ended_q <= (ended_q | ((end_call ? index_bit : '0) & sending_q)) & ~sent_bit;
      if (begin_call) begin
        calls_q <= calls_q + 8'd1;
        flow_calls_q[flow] <= flow_calls_q[flow] + 8'd1;
      end else if (end_call) begin
        calls_q <= calls_q - 8'd1;
        flow_calls_q[flow] <= flow_calls_q[flow] - 8'd1;
      end
      if (due_q) begin
        if (due_take) due_q <= 1'b0;
      end else begin
        scan_q <= scan_q + 1'b1;
        due_q <= used_q[scan_q] && !sending_q[scan_q] && !late[31];
        due_index_q <= scan_q;
      end
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, late[30:0], begin_data.flow};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
