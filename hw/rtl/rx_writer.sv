// Writes slots of the flows' receive rings, and takes packets out of the receive buffer.
//
// Orders come in two queues. A *short* one is all in its order: a slot of one line, or nothing. A *long* one has lines in the receive buffer,
// or goes to an area of host memory. Both share the port to host memory line by line, in turn: so a small message never waits for more than
// one line of a large one, whoever sent that. A long order begins in a cycle in which no short one gets its slot. The transport gives an order every
// other cycle at most, so there are such. Each queue keeps its order.
//
// The first line of a packet is in the order, its others are in the receive buffer. A packet of several of its message goes to an area, all of it.
// Of others, the lines after the first go to their slot first, and the header line goes last, with the phase bit that shows the slot
// to the host. The credit for a slot was taken before the order was given, so the slot is free. A long order gets its slot when it begins: those
// that short orders get meanwhile follow it in the ring.
module rx_writer #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    input logic restart,
    input logic [FLOW_BITS-1:0] restart_flow,
    input logic [32*FLOWS-1:0] flow_base,
    input logic [4*FLOWS-1:0] flow_slots_log2,
    input logic [4*FLOWS-1:0] flow_stride_log2,
    input logic short_valid,
    output logic short_take,
    input nic_pkg::receive_t short_order,
    input logic long_valid,
    output logic long_take,
    input nic_pkg::receive_t long_order,
    // The receive buffer.
    input logic line_valid,
    output logic line_take,
    input logic [nic_pkg::LINE_BITS-1:0] line,
    // Host memory.
    output logic write,
    input logic write_ready,
    output logic [31:0] write_address,
    output logic [nic_pkg::LINE_BITS-1:0] write_data,
    // A slot has been written.
    output logic written,
    output logic [FLOW_BITS-1:0] written_flow
);
  localparam int HEAD_TOP = nic_pkg::HEAD_BITS - 1;
  localparam logic [1:0] BEGIN = 2'd0;
  localparam logic [1:0] LINES = 2'd1;
  localparam logic [1:0] HEADER = 2'd2;

  // Slots of each flow that orders have been given.
  logic [15:0] slots_q[FLOWS];

  // The long order: where it stands, and its slot.
  logic [1:0] state_q;
  logic [5:0] done_q;
  logic [15:0] long_slot_q;
  logic [FLOW_BITS-1:0] long_flow;
  logic long_keeps_lines;
  logic long_begins;
  logic line_wanted;
  logic line_is_written;
  logic line_done;
  logic lines_end;
  assign long_flow = long_order.flow[FLOW_BITS-1:0];
  // The first line is written as it is, where the packet goes as it is.
  assign long_keeps_lines = long_order.store || (long_order.deliver && long_order.raw);
  // Not in the cycle in which a short order gets its slot.
  assign long_begins = long_valid && state_q == BEGIN && !short_take;
  assign line_wanted = long_valid && state_q == LINES && done_q != long_order.lines;
  assign line_is_written = long_keeps_lines || (long_order.deliver && long_order.payload);

  // Who has the port: a line of each in turn, if both want it.
  logic short_wants;
  logic long_wants;
  logic short_writes;
  logic short_was_last_q;
  logic long_header;
  logic line_there;
  assign line_there = done_q == 6'd0 || line_valid;
  assign long_header = long_valid && state_q == HEADER;
  assign short_wants = short_valid && short_order.deliver;
  assign long_wants = long_header || (line_wanted && line_there && line_is_written);
  assign short_writes = short_wants && !(long_wants && short_was_last_q);
  assign write = short_wants || long_wants;

  assign line_done = line_wanted && line_there && (!line_is_written || (!short_writes && write_ready));
  assign line_take = line_done && done_q != 6'd0;
  // No line is left after this cycle.
  assign lines_end = long_valid && state_q == LINES && (!line_wanted || (line_done && done_q + 6'd1 == long_order.lines));

  // The slot of the order that has the port.
  logic [FLOW_BITS-1:0] short_flow;
  logic [FLOW_BITS-1:0] flow;
  logic [15:0] count;
  logic [3:0] slots_log2;
  logic [15:0] slot;
  logic [31:0] slot_address;
  logic phase;
  assign short_flow = short_order.flow[FLOW_BITS-1:0];
  assign flow = short_writes ? short_flow : long_flow;
  assign count = short_writes ? slots_q[short_flow] : long_slot_q;
  assign slots_log2 = flow_slots_log2[4*flow+:4];
  assign slot = count & ((16'd1 << slots_log2) - 16'd1);
  assign slot_address = flow_base[32*flow+:32] + (32'(slot) << flow_stride_log2[4*flow+:4]);
  assign phase = !count[slots_log2];
  always_comb begin
    if (short_writes || long_header) begin
      write_address = slot_address;
      write_data[nic_pkg::HEAD_BITS-1:0] = {short_writes ? short_order.head[HEAD_TOP:1] : long_order.head[HEAD_TOP:1], phase};
      write_data[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS] = '0;
      if (short_writes && short_order.payload) write_data[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS] = short_order.first[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS];
      if (!short_writes && long_order.payload) write_data[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS] = long_order.first[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS];
    end else begin
      write_address = (long_order.store ? long_order.store_address : slot_address) + 32'(done_q) + (long_order.raw ? 32'd1 : 32'd0);
      write_data = (done_q == 6'd0) ? long_order.first : line;
    end
  end

  logic long_written;
  assign long_written = long_header && !short_writes && write_ready;
  // What is not delivered is no work.
  assign short_take = short_valid && (!short_order.deliver || (short_writes && write_ready));
  assign long_take = long_written || (lines_end && !long_order.deliver);
  assign written = (short_take && short_order.deliver) || long_written;
  assign written_flow = flow;

  always_ff @(posedge clk) begin
    if (rst) begin
      state_q <= BEGIN;
      done_q <= '0;
      long_slot_q <= '0;
      short_was_last_q <= 1'b0;
      for (int i = 0; i < FLOWS; i++) slots_q[i] <= '0;
    end else begin
      if (write && write_ready) short_was_last_q <= short_writes;
      if (short_take && short_order.deliver) slots_q[short_flow] <= count + 16'd1;
      if (long_begins) begin
        state_q <= LINES;
        // The first line of what is delivered with its payload goes with the header.
        done_q <= (long_keeps_lines || long_order.lines == 6'd0) ? 6'd0 : 6'd1;
        long_slot_q <= slots_q[long_flow];
        if (long_order.deliver) slots_q[long_flow] <= slots_q[long_flow] + 16'd1;
      end
      if (line_done) done_q <= done_q + 6'd1;
      if (lines_end && long_order.deliver) state_q <= HEADER;
      if (long_take) state_q <= BEGIN;
      if (restart) begin
        slots_q[restart_flow] <= '0;
        // What is being written is the first slot of the new ring.
        if (long_valid && state_q != BEGIN && long_order.deliver && long_flow == restart_flow) begin
          long_slot_q <= '0;
          slots_q[restart_flow] <= 16'd1;
        end
      end
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, short_order, long_order};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
