// The host's accesses to registers, and the lines that it pushes, from its clock (`host_clk`) to the NIC's (`clk`): one queue, so that they arrive in
// the order in which they were made. What a read of a register says comes back through another.
module bus_crossing (
    input logic host_clk,
    input logic host_rst,
    // An access: a write or a read of a register, or a line that is pushed to a flow.
    input logic host_valid,
    output logic host_ready,
    input logic host_writes,
    input logic host_pushes,
    // The register; of a push, the flow.
    input logic [15:0] host_address,
    // What is written is the lowest 32 bits.
    input logic [nic_pkg::LINE_BITS-1:0] host_line,
    output logic host_read_valid,
    output logic [31:0] host_read_data,
    input logic clk,
    input logic rst,
    output logic csr_write,
    output logic [15:0] csr_address,
    output logic [31:0] csr_write_data,
    input logic [31:0] csr_read_data,
    output logic push_valid,
    input logic push_ready,
    output logic [7:0] push_flow,
    output logic [nic_pkg::LINE_BITS-1:0] push_line
);
  localparam int ACCESS_BITS = 2 + 16 + nic_pkg::LINE_BITS;

  logic access_valid;
  logic access_take;
  logic writes;
  logic pushes;
  clock_fifo #(
      .WIDTH(ACCESS_BITS),
      .DEPTH_LOG2(3)
  ) accesses (
      .push_clk(host_clk),
      .push_rst(host_rst),
      .push(host_valid),
      .push_data({host_writes, host_pushes, host_address, host_line}),
      .push_ready(host_ready),
      .pop_clk(clk),
      .pop_rst(rst),
      .pop(access_take),
      .pop_valid(access_valid),
      .pop_data({writes, pushes, csr_address, push_line})
  );
  assign csr_write_data = push_line[31:0];
  assign push_flow = csr_address[7:0];
  assign push_valid = access_valid && pushes;
  assign csr_write = access_valid && writes && !pushes;

  // A read: its answer is there a cycle later. It begins only where there is room for one more than is on its way.
  logic reads;
  logic answered_q;
  logic answers_ready;
  assign reads = access_valid && !writes && !pushes && answers_ready && !answered_q;
  assign access_take = pushes ? push_ready : writes ? 1'b1 : reads;
  always_ff @(posedge clk) begin
    if (rst) answered_q <= 1'b0;
    else answered_q <= reads;
  end
  clock_fifo #(
      .WIDTH(32),
      .DEPTH_LOG2(2)
  ) answers (
      .push_clk(clk),
      .push_rst(rst),
      .push(answered_q),
      .push_data(csr_read_data),
      .push_ready(answers_ready),
      .pop_clk(host_clk),
      .pop_rst(host_rst),
      .pop(1'b1),
      .pop_valid(host_read_valid),
      .pop_data(host_read_data)
  );
endmodule
