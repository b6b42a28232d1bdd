// The port to host memory between two clocks: the NIC's (`clk`) and the host's (`host_clk`).
//
// Reads and writes go through one queue, so that a read still sees what the NIC has written before it. The NIC has at most so many reads out as the queue of
// lines has places, and takes each line as it comes: so the host never waits with a line.
module host_crossing #(
    parameter int READS_LOG2 = 5
) (
    input logic clk,
    input logic rst,
    input logic read,
    output logic read_ready,
    input logic [31:0] read_address,
    output logic data_valid,
    output logic [nic_pkg::LINE_BITS-1:0] data,
    input logic write,
    output logic write_ready,
    input logic [31:0] write_address,
    input logic [nic_pkg::LINE_BITS-1:0] write_data,
    input logic host_clk,
    input logic host_rst,
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] host_data,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data
);
  localparam int ACCESS_BITS = 1 + 32 + nic_pkg::LINE_BITS;

  // One access in a cycle, a read and a write in turn if there are both.
  logic write_was_last_q;
  logic writes;
  logic accesses_ready;
  assign writes = write && !(read && write_was_last_q);
  assign write_ready = accesses_ready && writes;
  assign read_ready = accesses_ready && !writes;
  always_ff @(posedge clk) begin
    if (rst) write_was_last_q <= 1'b0;
    else if (accesses_ready && (read || write)) write_was_last_q <= writes;
  end

  logic access_valid;
  logic access_writes;
  logic [31:0] access_address;
  logic access_take;
  clock_fifo #(
      .WIDTH(ACCESS_BITS),
      .DEPTH_LOG2(4)
  ) accesses (
      .push_clk(clk),
      .push_rst(rst),
      .push(read || write),
      .push_data({writes, writes ? write_address : read_address, write_data}),
      .push_ready(accesses_ready),
      .pop_clk(host_clk),
      .pop_rst(host_rst),
      .pop(access_take),
      .pop_valid(access_valid),
      .pop_data({access_writes, access_address, host_write_data})
  );
  assign host_write = access_valid && access_writes;
  assign host_read = access_valid && !access_writes;
  assign host_write_address = access_address;
  assign host_read_address = access_address;
  assign access_take = access_writes ? host_write_ready : host_read_ready;

  /* verilator lint_off PINCONNECTEMPTY */
  clock_fifo #(
      .WIDTH(nic_pkg::LINE_BITS),
      .DEPTH_LOG2(READS_LOG2)
  ) lines (
      .push_clk(host_clk),
      .push_rst(host_rst),
      .push(host_data_valid),
      .push_data(host_data),
      .push_ready(),
      .pop_clk(clk),
      .pop_rst(rst),
      .pop(1'b1),
      .pop_valid(data_valid),
      .pop_data(data)
  );
  /* verilator lint_on PINCONNECTEMPTY */
endmodule
