// Writes slots of the flows' receive rings, and takes packets out of the receive buffer, in the order of its commands.
//
// A packet of several of its message goes to an area of host memory, all of it. Of others, the lines after the first go first; the header line, with the phase bit that shows the slot to the host, goes last. The credit for
// the slot was taken before the command was given, so the slot is free.
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
    input logic command_valid,
    output logic command_take,
    input nic_pkg::receive_t command,
    // The receive buffer.
    input logic line_valid,
    output logic line_take,
    input logic [511:0] line,
    // Host memory.
    output logic write,
    input logic write_ready,
    output logic [31:0] write_address,
    output logic [511:0] write_data,
    // A slot has been written.
    output logic written,
    output logic [FLOW_BITS-1:0] written_flow
);
  localparam logic [0:0] LINES = 1'd0;
  localparam logic [0:0] HEADER = 1'd1;

  logic [0:0] state_q;
  logic [5:0] done_q;
  logic [319:0] payload_q;
  logic [15:0] written_q[FLOWS];

  logic [FLOW_BITS-1:0] flow;
  logic [3:0] slots_log2;
  logic [15:0] count;
  logic [15:0] slot;
  logic [31:0] slot_address;
  assign flow = command.flow[FLOW_BITS-1:0];
  assign slots_log2 = flow_slots_log2[4*flow+:4];
  assign count = written_q[flow];
  assign slot = count & ((16'd1 << slots_log2) - 16'd1);
  assign slot_address = flow_base[32*flow+:32] + (32'(slot) << flow_stride_log2[4*flow+:4]);

  logic lines_left;
  logic line_is_written;
  logic line_done;
  assign lines_left = command_valid && state_q == LINES && done_q != command.lines;
  assign line_is_written = command.store || (command.deliver && (command.raw || (command.payload && done_q != 6'd0)));
  assign line_done = lines_left && line_valid && (!line_is_written || write_ready);
  assign line_take = line_done;
  // No line is left after this cycle.
  logic lines_end;
  assign lines_end = command_valid && state_q == LINES && (!lines_left || (line_done && done_q + 6'd1 == command.lines));

  logic header_due;
  assign header_due = command_valid && state_q == HEADER;

  assign write = (lines_left && line_valid && line_is_written) || header_due;
  always_comb begin
    if (header_due) begin
      write_address = slot_address;
      write_data = {payload_q, command.head[HEAD_TOP:1], !count[slots_log2]};
    end else begin
      write_address = (command.store ? command.store_address : slot_address) + 32'(done_q) + (command.raw ? 32'd1 : 32'd0);
      write_data = line;
    end
  end
  localparam int HEAD_TOP = nic_pkg::HEAD_BITS - 1;

  assign written = header_due && write_ready;
  assign written_flow = flow;
  assign command_take = written || (lines_end && !command.deliver);

  always_ff @(posedge clk) begin
    if (rst) begin
      state_q <= LINES;
      done_q <= '0;
      payload_q <= '0;
      for (int i = 0; i < FLOWS; i++) written_q[i] <= '0;
    end else begin
      if (line_done) begin
        done_q <= done_q + 6'd1;
        if (done_q == 6'd0) payload_q <= (command.payload && !command.raw) ? line[511:192] : '0;
      end
      if (lines_end && command.deliver) state_q <= HEADER;
      if (command_take) begin
        state_q <= LINES;
        done_q <= '0;
        payload_q <= '0;
      end
      if (written) written_q[flow] <= count + 16'd1;
      if (restart) written_q[restart_flow] <= '0;
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, command.flow, command.head[0]};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
